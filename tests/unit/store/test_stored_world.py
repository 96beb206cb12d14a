"""Pictures of the environment in journals, episode files and live items."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from runner.batch.episode_feed import EncodedEvents
from runner.publish.live_encoder import live_items
from runner.store import EpisodeRecorder, EpisodeStore, open_index
from runner.store.encoded import EncodedLog, EncodedReset
from runner.store.episode_file import decode_episode
from runner.store.journal import read_journal, unfinished_record
from runner.tracing import SpanList, Tracer
from runner.types import EpisodeEnded, EpisodeStarted, Outcome, PackedCells, TimestepPlayed
from runner.worker.episode_reporter import EpisodeReporter
from tests.support.episodes import END, episode_header, make_step, make_trajectory
from tests.support.fake_worker import encoded_step

RESET: PackedCells = [["# # "], [["► ", "yellow", "solid"], "."]]
AFTER: PackedCells = [["# # "], [".", ["► ", "yellow", "solid"]]]


def test_journal_and_file_have_the_pictures_and_old_files_open(tmp_path: Path) -> None:
    store, spans, header = EpisodeStore(tmp_path), SpanList(), episode_header()
    recorder = EpisodeRecorder(store, open_index(store))
    reporter = EpisodeReporter(Tracer(), spans, recorder)
    reporter.emit(EpisodeStarted(at=END, episode_id=header.episode_id, seq=0, header=header))
    reporter.on_reset([], "e", RESET)
    step = make_step(0, world=AFTER)
    reporter.emit(TimestepPlayed(at=END, episode_id=header.episode_id, seq=0, step=step, reset_world=RESET))

    journal = read_journal(store.journal_path(header.batch_id, header.episode_id))
    assert (journal.reset_world, journal.steps[0].world) == (RESET, AFTER)
    unfinished = unfinished_record(journal, Outcome.INTERRUPTED, ended_at=END)
    assert (unfinished.reset_world, unfinished.timesteps[0].world) == (RESET, AFTER)

    trajectory = make_trajectory(header, [step])
    reporter.emit(EpisodeEnded(at=END, episode_id=header.episode_id, seq=0, trajectory=trajectory))
    path = store.path(header.batch_id, header.episode_id)
    record = decode_episode(path.read_bytes(), path)
    assert (record.reset_world, record.timesteps[0].world) == (RESET, AFTER)

    old = json.loads(path.read_bytes())
    del old["reset_world"], old["timesteps"][0]["world"]
    record = decode_episode(json.dumps(old).encode(), path)
    assert (record.reset_world, record.timesteps[0].world) == (None, None)


def test_an_episode_without_pictures_writes_none() -> None:
    log = EncodedLog()
    assert b"world" not in log.add_reset(EncodedReset(observation=b"[]", env_episode_id="e"))


def test_the_first_live_step_has_the_picture_of_the_reset() -> None:
    log, header = EncodedLog(), episode_header()
    events = EncodedEvents(header, log)
    reset = EncodedReset(observation=b"[]", env_episode_id="e", world=msgspec.json.encode(RESET))
    log.add_reset(reset)
    events.add_reset(reset)
    for index, expected in ((0, RESET), (1, None)):
        part = encoded_step(make_step(index, world=AFTER), seq=index, schemas_ref=0)
        part = msgspec.structs.replace(part, tool_schemas=b"[[]]" if index == 0 else b"[]")
        log.add_step(part)
        (item,) = (each.get() for each in events.add_step(part))
        live = json.loads(bytes(live_items(item)[0]))
        assert (live["world"], live["reset_world"]) == (AFTER, expected)

"""Pictures of the environment in journals, episode files and live items."""

from __future__ import annotations

import json

from runner.store import EpisodeStore
from runner.store.episode_file import decode_episode
from runner.store.journal import journal_line, read_journal, unfinished_record
from runner.store.parts import Reset, Step
from runner.types import Outcome, PackedCells, TimestepPlayed
from tests.support.episodes import END, RecordedEpisode, make_step

RESET: PackedCells = [["# # "], [["► ", "yellow", "solid"], "."]]
AFTER: PackedCells = [["# # "], [".", ["► ", "yellow", "solid"]]]


def test_journal_and_file_have_the_pictures_and_old_files_open(store: EpisodeStore, recording: RecordedEpisode) -> None:
    recording.start()
    recording.reporter.on_reset([], "e", RESET)
    recording.play(make_step(0, world=AFTER))

    journal = read_journal(recording.journal)
    assert (journal.reset_world, journal.steps[0].world) == (RESET, AFTER)
    unfinished = unfinished_record(journal, Outcome.INTERRUPTED, ended_at=END)
    assert (unfinished.reset_world, unfinished.timesteps[0].world) == (RESET, AFTER)

    recording.end()
    record = store.load(recording.file)
    assert (record.reset_world, record.timesteps[0].world) == (RESET, AFTER)

    old = json.loads(recording.file.read_bytes())
    del old["reset_world"], old["timesteps"][0]["world"]
    record = decode_episode(json.dumps(old).encode(), recording.file)
    assert (record.reset_world, record.timesteps[0].world) == (None, None)


def test_an_episode_without_pictures_writes_none() -> None:
    assert b"world" not in journal_line(Reset(episode_id="i", observation=b"[]", env_episode_id="e"))


def test_the_first_live_step_has_the_picture_of_the_reset(recording: RecordedEpisode) -> None:
    recording.start()
    for number, reset_world in enumerate((RESET, None)):
        recording.send(TimestepPlayed, step=make_step(number, world=AFTER), reset_world=reset_world)
        (*_, part) = recording.parts
        assert isinstance(part, Step)
        live = json.loads(part.live)
        assert (live["world"], live["reset_world"]) == (AFTER, reset_world)

"""Episode files: their fields, foreign values, damage, and pictures of the environment."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.store.episode_file import decode_episode
from runner.store.journal import journal_line, read_journal, unfinished_record
from runner.store.parts import Reset, Started, Step, Unjournaled
from runner.types import (
    Action,
    EpisodeHeader,
    ErrorInfo,
    Flow,
    Outcome,
    PackedCells,
    TimestepPlayed,
    Tokens,
    ToolCall,
)
from tests.support.episodes import (
    END,
    START,
    FixedMeter,
    RecordedEpisode,
    as_json,
    damaged_bytes,
    episode_header,
    finished_record,
    make_step,
    make_trajectory,
    new_id,
    newest_rows,
)
from tests.support.examples import examples

EPISODE = (
    "schema episode_id env_episode_id batch_id battery_id node boot profile env transport data_label mode task_index"
    " seed attempt agent model started_at ended_at duration_s paused_s outcome success reward agentgym rounds models"
    " tokens cost reset_observation timesteps tool_schemas spans flows error evaluation trace_last_response_flow_id"
    " parent versions limits n_planned currency worker energy_j energy_shared gpu_s reset_world origin"
)
TIMESTEP = (
    "index actor chats action observation reward done tool_schemas_ref model_s env_s endpoint model ttft_s"
    " tokens_per_s tokens cost warnings phases world"
)


def test_an_episode_file_has_the_fields_of_the_contract(recording: RecordedEpisode) -> None:
    recording.record_episode()
    content = msgspec.json.decode(recording.file.read_bytes())
    assert content.keys() == set(EPISODE.split())
    assert content["timesteps"][0].keys() == set(TIMESTEP.split())
    assert set(content["timesteps"][0]["action"]) == {"text", "tool_calls", "valid"}
    assert content["started_at"] == "2026-03-04T05:06:07.890000Z"
    assert content["schema"] == 1


def test_a_saved_episode_loads_unchanged(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index, seed=4, attempt=1, model="small", parent={"episode_id": "x", "step": 3})
    record = recording.record_episode(
        error_info=ErrorInfo("Boom", "it broke", "trace"), env_episode_id="../../etc/passwd"
    )
    assert store.load(recording.file) == record
    assert store.load(record.episode_id) == record
    assert (record.reward, record.rounds, record.cost) == (0.75, 3, 1.5)
    assert record.tokens == Tokens(30, 6)
    assert [span.name for span in record.spans] == ["timestep", "timestep", "timestep", "episode"]
    assert (record.started_at, record.ended_at) == (START, END)


def test_files_and_folders_are_private(store: EpisodeStore, recording: RecordedEpisode) -> None:
    recording.start()
    assert stat.S_IMODE(recording.journal.stat().st_mode) == 0o600
    recording.end()
    assert stat.S_IMODE(recording.file.stat().st_mode) == 0o600
    for folder in (store.data_dir, store.runs, recording.file.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in recording.file.parent.iterdir()] == [recording.file.name]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def endless_list() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    ("content", "stored"),
    [
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ({"\udfff": "key"}, {"\\udfff": "key"}),
        (float("nan"), None),
        (float("-inf"), None),
        (Unprintable(), "<Unprintable>"),
        ([Unprintable(), "\ud800"], ["<Unprintable>", "\\ud800"]),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        (b"bytes", "Ynl0ZXM="),
        ([2**80, "\ud800"], [hex(2**80), "\\ud800"]),
        ([True, 1.5, None, "\ud800"], [True, 1.5, None, "\\ud800"]),
    ],
)
def test_values_that_json_cannot_represent_are_converted(
    content: object, stored: object, store: EpisodeStore, recording: RecordedEpisode
) -> None:
    recording.start()
    recording.play(make_step(0, observation=[{"role": "user", "content": content}], tokens=Tokens(1)))
    journal = recording.journal.read_text(encoding="utf-8")
    recording.end()
    assert store.load(recording.file).timesteps[0].observation == [{"role": "user", "content": stored}]
    assert msgspec.json.decode(journal.splitlines()[1])["observation"][0]["content"] == stored


def test_endless_nesting_is_truncated(store: EpisodeStore, recording: RecordedEpisode) -> None:
    recording.start()
    recording.play(make_step(0, observation=[{"role": "user", "content": endless_list()}]))
    recording.end()
    assert "…" in str(store.load(recording.file).timesteps[0].observation)


def test_lone_surrogates_are_allowed_in_any_text(store: EpisodeStore, index: EpisodeIndex) -> None:
    bad = "\ud83d"
    recording = RecordedEpisode(store, index, node=bad, model=bad, env=bad)
    recording.start()
    recording.reset(env_episode_id=bad)
    recording.play(make_step(0, action=Action(bad, [ToolCall(bad, bad, bad)]), endpoint=bad))
    recording.end(error_info=ErrorInfo(bad, bad, bad))
    shown = "\\ud83d"
    record = store.load(recording.file)
    assert record.timesteps[0].action.tool_calls == [ToolCall(shown, shown, shown)]
    assert (record.env_episode_id, record.model) == (shown, shown)
    assert newest_rows(index)[0].error_type == shown


def test_the_reward_is_finite_for_any_step_rewards(store: EpisodeStore, index: EpisodeIndex) -> None:
    for rewards, total in (([1.7e308, 1.7e308], 1.7976931348623157e308), ([float("nan"), 1.0], 1.0)):
        recording = RecordedEpisode(store, index)
        recording.start()
        for number, reward in enumerate(rewards):
            recording.play(make_step(number, reward=reward))
        recording.end()
        assert store.load(recording.file).reward == total


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_a_journal_that_cannot_be_created_costs_no_step(
    store: EpisodeStore, recording: RecordedEpisode, is_abandoned: bool
) -> None:
    obstacle = store.runs / recording.header.batch_id
    obstacle.touch()
    recording.start()
    recording.play(make_step(0))
    assert [type(part) for part in recording.parts] == [Unjournaled, Started, Step]
    obstacle.unlink()
    if is_abandoned:
        record = recording.recorder.abandon(Outcome.TIMEOUT)
        assert store.load(recording.file) == record
    else:
        recording.end()
    assert store.load(recording.file).rounds == 1


def test_a_file_that_cannot_be_saved_is_an_error_and_keeps_the_journal(
    store: EpisodeStore, recording: RecordedEpisode
) -> None:
    recording.start()
    recording.play(make_step(0))
    recording.file.mkdir()
    with pytest.raises(StoreError, match=recording.header.episode_id):
        recording.end()
    assert recording.recorder.record is not None
    recording.file.rmdir()
    assert [record.rounds for record in EpisodeStore(store.data_dir).recover()] == [1]


def test_the_error_names_a_state_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="--data-dir"):
        EpisodeStore(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    "name", ["..", "x", "", "../../../etc/passwd", "01ARZ3NDEKTSV4RRFFQ69G5FA", "8" * 26, "i" * 26]
)
def test_only_ulids_become_paths(name: str, store: EpisodeStore) -> None:
    with pytest.raises(StoreError):
        store.path(name, new_id())
    with pytest.raises(StoreError):
        store.path(new_id(), name)
    with pytest.raises(StoreError):
        store.load(name)


def save_episode(store: EpisodeStore) -> tuple[Path, dict[str, Any]]:
    index = open_index(store)
    recording = RecordedEpisode(store, index)
    recording.record_episode()
    index.close()
    return recording.file, msgspec.json.decode(recording.file.read_bytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, this version reads 1"),
        ({"schema": 2, "timesteps": "elsewhere"}, "schema 2, this version reads 1"),
        ({"episode_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "does not match its name"),
        ({"batch_id": "../.."}, "does not match its name"),
        ({"outcome": "winning"}, "damaged"),
        ({"success": None}, "damaged"),
        ({"tool_schemas": []}, "tool schemas that it does not contain"),
        ({"ended_at": "2026-03-04T05:06:07"}, "time zone"),
    ],
)
def test_a_file_with_invalid_content_is_rejected_with_its_name(
    change: dict[str, Any], message: str, store: EpisodeStore
) -> None:
    path, content = save_episode(store)
    path.write_bytes(msgspec.json.encode({**content, **change}))
    with pytest.raises(StoreError, match=message) as caught:
        store.load(path)
    assert str(path) in str(caught.value)


def test_unknown_fields_are_ignored_and_an_older_file_without_gpu_fields_is_read(store: EpisodeStore) -> None:
    path, content = save_episode(store)
    for name in ("energy_j", "energy_shared", "gpu_s"):
        del content[name]
    path.write_bytes(msgspec.json.encode({**content, "later": [1]}))
    record = store.load(path)
    assert record.rounds == 3
    assert (record.energy_j, record.energy_shared, record.gpu_s) == (None, False, None)


def test_special_and_oversized_files_are_not_read(store: EpisodeStore) -> None:
    path, _ = save_episode(store)
    os.truncate(path, 257 * 1024 * 1024)
    with pytest.raises(StoreError, match="bytes"):
        store.load(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="regular"):
        store.load(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="cannot be read"):
        store.load(path)


def test_reading_takes_the_memory_of_the_file_and_not_of_the_largest_one(store: EpisodeStore) -> None:
    path, _ = save_episode(store)
    tracemalloc.start()
    try:
        content = store.read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert content == path.read_bytes()
    assert peak < 1 << 20


@settings(deadline=None, max_examples=examples(80))
@given(st.data())
def test_no_bytes_in_an_episode_file_crash_the_reader(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(folder))
        path, _ = save_minimal_episode(store)
        content = path.read_bytes()
        assert store.load(path).flows == [Flow(id=2**64 - 1, span=1, phase="start")]
        path.write_bytes(data.draw(st.binary(max_size=200) | damaged_bytes(content)))
        try:
            record = store.load(path)
        except StoreError as exc:
            assert str(path) in str(exc)
        else:
            assert record.episode_id == path.stem


def save_minimal_episode(store: EpisodeStore) -> tuple[Path, EpisodeHeader]:
    header = episode_header()
    record = finished_record(
        header, make_trajectory(header, [make_step(0)]), flows=[Flow(id=2**64 - 1, span=1, phase="start")]
    )
    return store.save(record), header


def test_saving_twice_keeps_the_later_episode(store: EpisodeStore, recording: RecordedEpisode) -> None:
    record = recording.record_episode()
    store.save(msgspec.structs.replace(record, outcome=Outcome.ERROR))
    assert as_json(store.load(recording.file))["outcome"] == "error"


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_an_episode_file_has_what_the_gpus_did(store: EpisodeStore, index: EpisodeIndex, is_abandoned: bool) -> None:
    meter = FixedMeter(energy_j=12.5, energy_shared=True, gpu_s=0.5)
    recording = RecordedEpisode(store, index, meter=meter)
    if is_abandoned:
        recording.start()
        recording.recorder.abandon(Outcome.TIMEOUT)
    else:
        recording.record_episode()
    record = store.load(recording.file)
    assert (record.energy_j, record.energy_shared, record.gpu_s) == (12.5, True, 0.5)
    assert meter.running == []


def test_a_folder_that_cannot_be_read_is_named_and_hides_no_other(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, shown = (RecordedEpisode(store, index) for _ in range(2))
    for each in (hidden, shown):
        each.record_episode(1)
    scan = os.scandir

    def refuse(path: Path) -> Any:  # noqa: ANN401
        if Path(path) == hidden.file.parent:
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)  # folders of root can always be read
    index.reconcile()
    assert [row.episode_id for row in newest_rows(index)] == [shown.file.stem]
    (damaged,) = index.damaged
    assert damaged.path == hidden.file.parent
    assert "Permission denied" in damaged.reason


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

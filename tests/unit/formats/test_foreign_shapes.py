"""Files of other tools in their less usual shapes, and what an import may cost."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from runner.formats.agentgym import encode_agenttraj
from runner.formats.drafts import MAX_STEPS
from runner.formats.format import LeftOut
from runner.formats.reading import LIMITS, read_place
from runner.results.summary import Selection, reward_histogram, summarize_results
from runner.results.task_matrix import task_matrices
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore
from runner.types import Outcome
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.recordings import load_rows
from tests.unit.formats.conftest import imported, read_all, stored

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
HEADER = {"task": "sums", "model": "openai/m", "created": "2026-01-01T00:00:00+00:00"}
MAX_BYTES = 320_000_000


def written(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_a_json_log_of_inspect_is_read_sample_by_sample(tmp_path: Path) -> None:
    timed = {"timestamp": "2026-01-01T00:00:05+00:00"}, {"timestamp": "2026-01-01T00:00:08+00:00"}
    samples: list[Any] = [
        {"id": 1, "epoch": 1, "messages": CHAT, "scores": {"match": {"value": "C"}}, "events": timed},
        "no sample",
        {"id": 2, "epoch": 1, "messages": CHAT, "scores": {"match": {"value": "I"}}},
    ]
    log = {"version": 2, "status": "success", "eval": HEADER, "results": {"samples": [{}], "text": '"samples": ['}}
    path = written(tmp_path / "log.json", {**log, "samples": samples, "reductions": [{"samples": [{}]}]})
    (first, second), malformed = read_all(path)
    assert [(each.place.unit, each.place.number) for each in malformed] == [("sample", 2)]
    assert [(each.record.env, each.record.task_index) for each in (first, second)] == [("sums", 1), ("sums", 2)]
    assert [each.record.outcome for each in (first, second)] == [Outcome.SUCCESS, Outcome.FAILURE]
    assert (first.record.started_at.second, first.record.duration_s) == (5, 3.0)  # an older log: of its events
    assert second.record.started_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert json.loads(read_place(second.place)) == samples[2]


def test_lists_of_lists_are_read_like_one_list(tmp_path: Path) -> None:
    rollout = {"responses_create_params": {"input": "q"}, "response": {"output": []}, "reward": 1.0}
    found, malformed = read_all(written(tmp_path / "rollouts.json", [[rollout] * 40, [], [rollout, 5]]))
    assert [each.record.reward for each in found] == [1.0] * 41
    assert [each.place.number for each in malformed] == [42]


def test_the_output_of_agentgyms_evaluator_has_environment_task_and_success(tmp_path: Path) -> None:
    found, malformed = read_all(written(tmp_path / "results.json", load_rows("client_results.jsonl")))
    assert not malformed
    assert [(each.record.env, each.record.task_index, each.record.success) for each in found] == [
        *(("BabyAI", 0, False), ("TextCraft", 1, True), ("Maze", 4, False), ("Wordle", 0, False)),
        *(("SciWorld", 0, False), ("SQLGym", 0, True)),
    ]
    assert found[0].record.reward == 0.8875


@pytest.mark.parametrize(
    ("item", "env", "task"),
    [
        ("lmrlgym_wordle_3", "Wordle", 3),
        ("sciworld_12", "SciWorld", 12),
        ("webarena_4", "WebArena", 4),
        ("pick_and_place_simple-Mug-None-Desk-308/trial_T20190908_125200_737896", "ALFWorld", None),
    ],
)
def test_an_item_names_environment_and_task(item: str, env: str, task: int | None, tmp_path: Path) -> None:
    conversations = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    (found,), _ = read_all(written(tmp_path / "items.json", [{"item_id": item, "conversations": conversations}]))
    assert found.record.env == env
    assert found.record.task_index == task if task is not None else found.record.task_index > 737896
    assert found.record.reward is None


def test_items_have_ids_that_agentgyms_filter_knows() -> None:
    def episode(env: str) -> EpisodeRecord:
        header = episode_header(env=env, task_index=3)
        return finished_record(header, make_trajectory(header, [make_step(0)]))

    ids = [encode_agenttraj(episode(env))["item_id"] for env in ("Maze", "Wordle", "SQLGym")]
    assert ids == ["lmrlgym_maze_3", "lmrlgym_wordle_3", "sqlgym_3"]
    with pytest.raises(LeftOut, match="does not know its environment"):
        encode_agenttraj(episode("Countdown"))


def test_a_result_of_tau_bench_is_a_conversation_with_a_reward(tmp_path: Path) -> None:
    result = {"task_id": 4, "reward": 1.0, "info": {}, "traj": [{"role": "system", "content": "s"}, *CHAT], "trial": 2}
    (found,), _ = read_all(written(tmp_path / "airline.json", [result]))
    record = found.record
    assert (record.env, record.task_index, record.attempt, record.reward, record.success) == (
        "airline",
        4,
        2,
        1.0,
        True,
    )


def test_a_value_that_cannot_be_read_costs_its_episode(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    times = pa.array([0, 4611686018427387904, 0], pa.timestamp("us", tz="UTC"))
    columns = {"episode_id": ["a", "b", "c"], "step": [0] * 3, "reply": ["r"] * 3, "observation": ["o"] * 3}
    parquet.write_table(pa.table({**columns, "started_at": times}), tmp_path / "t.parquet")
    found, malformed = read_all(tmp_path / "t.parquet")
    assert [each.record.origin and each.record.origin.id for each in found] == ["a", "c"]
    assert [(each.place.unit, each.place.number) for each in malformed] == [("episode", 2)]


def test_no_number_is_made_from_an_unknown_reward(store: EpisodeStore, index: EpisodeIndex, tmp_path: Path) -> None:
    lines = [{"messages": CHAT, "outcome": "truncated"}, {"messages": CHAT, "outcome": "truncated", "reward": 0.5}]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    imported(store, index, tmp_path / "chats.jsonl")
    (row,) = summarize_results(index)
    assert (row.n_rated, row.score) == (2, 0.5)
    assert index.select("SELECT count(*) FROM episodes WHERE reward IS NULL") == [(1,)]
    ((task,),) = (matrix.tasks for matrix in task_matrices(index))
    assert (task.mean_reward, task.zero_variance) == (0.5, False)
    histogram = reward_histogram(index, Selection())
    assert histogram is not None and sum(histogram.counts) == 1


def test_the_0_that_earlier_versions_stored_for_an_unknown_reward_is_none(
    store: EpisodeStore, index: EpisodeIndex, tmp_path: Path
) -> None:
    imported(store, index, written(tmp_path / "chat.json", {"messages": CHAT}))
    (record,) = stored(store, index)
    path = store.path(record.batch_id, record.episode_id)
    path.write_text(path.read_text().replace('"reward":null', '"reward":0.0'))
    assert store.load(path).reward is None
    index.reconcile()
    assert index.select("SELECT reward FROM episodes") == [(None,)]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the memory is read from /proc")
def test_an_import_takes_little_memory_whatever_is_malformed(tmp_path: Path) -> None:
    megabytes = LIMITS.item_bytes >> 20
    steps = ",".join(['{"role":"assistant","content":""}'] * (MAX_STEPS + 1))
    wide = "\U0001f600" + "a" * (megabytes - 1 << 19)
    samples = [
        *[json.dumps("a" * (55 << 20))] * 8,
        *[f'{{"id":1,"messages":[{{"role":"user","content":"{wide}"}}]}}'] * 2,
        f'{{"id":1,"messages":[{steps}]}}',
    ]
    with zipfile.ZipFile(tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as log:
        log.writestr("header.json", json.dumps({"eval": HEADER}))
        for number, sample in enumerate(samples):
            log.writestr(f"samples/{number}_epoch_1.json", sample)
    code = (
        "import sys; from runner.cli import main; main(['import', *sys.argv[1:], '--json']); "
        "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log.eval"), "--data-dir", str(tmp_path / "state")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    report, _, peak = output.rstrip().rpartition("\n")
    assert (json.loads(report)["n_malformed"], json.loads(report)["n_imported"]) == (9, 2)
    assert int(peak) * 1024 < MAX_BYTES

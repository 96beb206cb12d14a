"""Harbor's job folders and Inspect's zip files: what they become, and what is not read of hostile ones."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runner.formats.format import recognise
from runner.formats.reading import Limits
from runner.store import EpisodeIndex, EpisodeStore
from runner.types import Outcome, Tokens
from tests.unit.formats.conftest import FILES, imported, read_all

SAMPLE = {
    "id": "task-7",
    "epoch": 2,
    "input": "2 + 2?",
    "target": "4",
    "messages": [
        {"id": "a", "role": "user", "content": "attachment://1f", "source": "input"},
        {
            "id": "b",
            "role": "assistant",
            "content": [{"type": "reasoning", "reasoning": "sum"}, {"type": "text", "text": "4"}],
        },
    ],
    "scores": {"match": {"value": "C", "answer": "4"}},
    "attachments": {"1f": "What is 2 + 2?"},
    "events": [
        {"event": "span_begin", "id": "s1", "type": "branch", "name": "retry"},
        {
            "event": "model",
            "span_id": "s1",
            "input": [],
            "input_refs": [[0, 1]],
            "output": {"choices": [{"message": {"id": "c", "role": "assistant", "content": "5"}}]},
        },
        {
            "event": "model",
            "input": [],
            "output": {
                "model": "m",
                "time": 1.5,
                "choices": [{"message": {"id": "b", "role": "assistant", "content": "4"}}],
                "usage": {"input_tokens": 3, "output_tokens": 1, "input_tokens_cache_read": 2},
            },
        },
    ],
    "events_data": {"messages": [{"role": "user", "content": "2 + 2?"}], "calls": []},
    "started_at": "2026-01-02T03:04:05+00:00",
    "completed_at": "2026-01-02T03:04:07+00:00",
}


def log_with(path: Path, *samples: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("header.json", json.dumps({"eval": {"task": "sums", "model": "openai/m"}}))
        for number, sample in enumerate(samples):
            log.writestr(f"samples/../../../{number}_epoch_1.json", sample)
    return path


def test_a_log_of_inspect_is_read_with_its_branches(tmp_path: Path) -> None:
    (main, branch), malformed = read_all(log_with(tmp_path / "log.eval", json.dumps(SAMPLE)))
    assert not malformed
    record = main.record
    assert (record.env, record.model, record.attempt, record.task_index) == ("sums", "openai/m", 1, 7)
    assert (record.outcome, record.reward, record.duration_s) == (Outcome.SUCCESS, 1.0, 2.0)
    assert record.reset_observation == [{"role": "user", "content": "What is 2 + 2?"}]
    (step,) = record.timesteps
    assert (step.action.text, step.chats[0][-1]["reasoning_content"], step.model_s) == ("4", "sum", 1.5)
    assert step.tokens == Tokens(5, 1, 0, 2)
    assert branch.record.timesteps[0].action.text == "5"
    assert branch.record.reset_observation == [{"role": "user", "content": "2 + 2?"}]
    assert branch.record.unscored
    assert not list(tmp_path.parent.glob("*_epoch_1.json"))


def test_a_sample_that_inspect_has_written_is_read(tmp_path: Path) -> None:
    recorded = json.loads((FILES / "inspect_log.json").read_bytes())
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as log:
        log.writestr("header.json", json.dumps(recorded["header"]))
        log.writestr("samples/yes_epoch_1.json", json.dumps(recorded["sample"]))
    (found,), malformed = read_all(tmp_path / "log.eval")
    assert not malformed
    record = found.record
    assert (record.env, record.model, record.outcome, record.reward) == ("words", "mockllm/model", Outcome.SUCCESS, 1.0)
    assert record.reset_observation == [{"role": "user", "content": "Say it."}]
    assert record.timesteps[0].tokens == Tokens(7, 2, 0, 2)


def test_a_damaged_or_huge_sample_costs_only_itself(tmp_path: Path) -> None:
    bomb = json.dumps({**SAMPLE, "target": "x" * 200_000})
    found, malformed = read_all(
        log_with(tmp_path / "log.eval", "{", bomb, json.dumps(SAMPLE)), Limits(item_bytes=20_000)
    )
    assert len(found) == 2
    assert [each.place.number for each in malformed] == [1, 2]


def test_nested_spans_and_repeated_references_cost_their_number(tmp_path: Path) -> None:
    n = 20_000  # quadratic work would exceed the time-out
    spans = [{"event": "span_begin", "id": str(k), "parent_id": str(k - 1)} for k in range(1, n)]
    root = {"event": "span_begin", "id": "0", "type": "branch"}
    loop = [{"event": "span_begin", "id": one, "parent_id": other} for one, other in ("xy", "yx")]
    output = {"choices": [{"message": {"role": "assistant", "content": "5"}}]}
    calls = [{"event": "model", "span_id": str(n - 1 - k), "output": output} for k in range(n)]
    last = [{**calls[0], "input_refs": [[0, 2]] * n}, {**calls[0], "span_id": "x"}]
    pool = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    sample = {**SAMPLE, "events": [*spans, root, *loop, *calls, *last], "events_data": {"messages": pool}}
    (_, branch), malformed = read_all(log_with(tmp_path / "log.eval", json.dumps(sample)))
    assert not malformed
    assert branch.record.reset_observation == [*pool, *pool]


def test_a_damaged_log_is_reported_with_its_cause(tmp_path: Path, store: EpisodeStore, index: EpisodeIndex) -> None:
    path = log_with(tmp_path / "log.eval", json.dumps(SAMPLE))
    path.write_bytes(path.read_bytes()[:-30])
    report = imported(store, index, path)
    assert (report.n_imported, report.n_malformed, report.n_unrecognised) == (0, 1, 0)
    assert "its end is missing" in report.malformed[0].reason


def test_a_log_that_needs_a_package_names_it(
    tmp_path: Path, store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = log_with(tmp_path / "log.eval", json.dumps(SAMPLE))
    data = bytearray(path.read_bytes())
    for header, offset in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        at = data.find(header)
        while at >= 0:
            data[at + offset] = 93  # zstd
            at = data.find(header, at + 1)
    path.write_bytes(data)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (loss,) = imported(store, index, path).malformed
    assert "install it with: pip install 'agentgym-console[inspect]'" in loss.reason
    assert "damaged" not in loss.reason


def test_a_member_without_a_name_costs_nothing_else(tmp_path: Path) -> None:
    path = log_with(tmp_path / "log.eval", json.dumps(SAMPLE))
    with zipfile.ZipFile(path, "a") as log:
        log.writestr("nameless", "{}")
    path.write_bytes(path.read_bytes().replace(b"nameless", b"\0ameless"))
    found, malformed = read_all(path)
    assert (len(found), malformed) == (2, [])


def trial(folder: Path, reward: float | None, **fields: Any) -> Path:  # noqa: ANN401
    (folder / "agent").mkdir(parents=True)
    result = {
        "task_name": "sort-csv",
        "trial_name": folder.name,
        "source": "terminal-bench",
        "agent_info": {"name": "terminus-2", "version": "2.0", "model_info": {"name": "qwen3", "provider": "local"}},
        "verifier_result": None if reward is None else {"rewards": {"reward": reward}},
        "started_at": "2026-01-02T03:04:05Z",
        "finished_at": "2026-01-02T03:05:05Z",
        **fields,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of three trials: with a trajectory, without one, and with an error."""
    job = tmp_path / "job"
    first = trial(job / "sort__1", 1.0)
    (first / "agent" / "trajectory.json").write_bytes((FILES / "atif_v17.json").read_bytes())
    trial(job / "sort__2", 0.0, agent_result={"cost_usd": 0})
    trial(job / "sort__3", None, exception_info={"exception_type": "AgentTimeoutError", "exception_message": "late"})
    (job / "config.json").write_text("{}")
    return job


def test_a_job_of_harbor_is_one_batch_of_trials(job: Path, store: EpisodeStore, index: EpisodeIndex) -> None:
    form = recognise(job)
    assert form is not None
    assert form.name == "harbor"
    found, malformed = read_all(job)
    assert not malformed
    records = [each.record for each in found]
    assert [record.outcome for record in records] == [
        Outcome.SUCCESS,
        Outcome.INTERRUPTED,
        Outcome.FAILURE,
        Outcome.ERROR,
    ]
    assert {record.env for record in records} == {"terminal-bench"}
    assert len({record.task_index for record in records}) == 1
    assert (records[0].model, records[0].duration_s, records[0].rounds) == ("local/qwen3", 60.0, 2)
    assert records[2].cost == 0.0
    assert records[2].origin is not None
    assert "transcript" in records[2].origin.missing
    assert imported(store, index, job).n_imported == 4
    assert imported(store, index, job).n_known == 4


def test_a_link_in_a_job_is_not_followed(job: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "trajectory.json").write_bytes((FILES / "atif_v17.json").read_bytes())
    (job / "sort__2" / "agent").rmdir()
    (job / "sort__2" / "agent").symlink_to(outside)
    (job / "sort__2" / "verifier").mkdir()
    (job / "sort__4").symlink_to(job / "sort__1")
    found, _ = read_all(job)
    assert [each.record.rounds for each in found] == [2, 1, 0, 0]


def test_the_files_of_a_trial_are_bounded_together(job: Path) -> None:
    trajectory = (FILES / "atif_v17.json").read_bytes()
    for number in range(3):
        folder = job / "sort__1" / "steps" / str(number) / "agent"
        folder.mkdir(parents=True)
        (folder / "trajectory.json").write_bytes(trajectory)
    found, malformed = read_all(job, Limits(item_bytes=3 * len(trajectory)))
    assert [each.place.path.name for each in malformed] == ["sort__1"]
    assert {each.place.path.name for each in found} == {"sort__2", "sort__3"}

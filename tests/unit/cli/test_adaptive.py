"""Adaptive repeats: their looks, the coverage of their interval, their budget, and a run of the command."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import msgspec
import pytest

from runner.batch.result import BatchResult, BatchStats
from runner.batch.spec import ResolvedBatch
from runner.batch.stopping import is_narrow, planned_looks
from runner.cli.arguments import parse_options
from runner.cli.run import adaptive_parts
from runner.results.statistics import wilson_interval
from runner.types import Budget, Tokens
from tests.support.batches import resolved_batch
from tests.support.command import run_agentgym

RATES = [percent / 100 for percent in range(1, 100, 2)]


@pytest.mark.parametrize(
    ("n_max", "looks"),
    [(1, [1]), (32, [32]), (33, [32, 33]), (64, [32, 64]), (500, [32, 64, 128, 256, 500])],
)
def test_the_looks_double_up_to_the_maximum(n_max: int, looks: list[int]) -> None:
    assert planned_looks(n_max) == looks


def coverage(rate: float, n_max: int, width: float) -> float:
    """Return the exact probability that the interval at the end contains the rate."""
    running, covered, n = {0: 1.0}, 0.0, 0
    for look in planned_looks(n_max):
        k = look - n
        more = [math.comb(k, hits) * rate**hits * (1 - rate) ** (k - hits) for hits in range(k + 1)]
        reached = dict.fromkeys(range(look + 1), 0.0)
        for successes, probability in running.items():
            for hits, share in enumerate(more):
                reached[successes + hits] += probability * share
        n, running = look, {}
        for successes, probability in reached.items():
            low, high = wilson_interval(successes, n)
            if n < n_max and not is_narrow(successes, n, width):
                running[successes] = probability
            elif low <= rate <= high:
                covered += probability
    return covered


@pytest.mark.parametrize(("n_max", "width"), [(64, 0.2), (200, 0.1), (200, 0.3), (300, 0.15), (300, 0.2)])
def test_the_interval_keeps_its_coverage_although_the_run_may_stop_early(n_max: int, width: float) -> None:
    each = [coverage(rate, n_max, width) for rate in RATES]
    assert min(each) > 0.92
    assert sum(each) / len(each) > 0.945


def part_result(part: ResolvedBatch, n_success: int, **fields: object) -> BatchResult:
    result = BatchStats().result(
        part.spec, batch_id="b", battery_id=None, status="completed", data_label="", duration_s=1.0
    )
    return msgspec.structs.replace(result, n_success=n_success, n_rated=part.spec.repeat, **fields)


def test_in_a_simulation_of_runs_the_interval_contains_the_true_rate_as_often_as_it_promises() -> None:
    dice, batch = random.Random(7), resolved_batch(env="Maze", agent="oracle", repeat=200, task_index=5)
    n_covered = n_early = 0
    for _ in range(1000):
        rate, results = dice.random(), list[BatchResult]()
        tasks: list[int] = []
        for part in adaptive_parts(batch, 0.2, results):
            tasks += range(part.spec.task_index, part.spec.task_index + part.spec.repeat)
            results.append(part_result(part, sum(dice.random() < rate for _ in range(part.spec.repeat))))
        assert tasks == list(range(5, 5 + len(tasks)))
        low, high = wilson_interval(sum(result.n_success for result in results), len(tasks))
        n_covered += low <= rate <= high
        n_early += len(tasks) < 200
        assert high - low <= 0.2 or len(tasks) == 200
    assert 930 <= n_covered <= 970
    assert n_early > 800


def test_the_parts_share_one_budget(capsys: pytest.CaptureFixture[str]) -> None:
    batch = resolved_batch(env="Maze", agent="oracle", repeat=500, budget=Budget(tokens=100, errors_in_a_row=3))
    results: list[BatchResult] = []
    budgets: list[Budget | None] = []
    for part in adaptive_parts(batch, 0.01, results):
        budgets.append(part.spec.budget)
        results.append(part_result(part, 9, tokens=Tokens(prompt=50)))
    assert budgets == [Budget(tokens=100, errors_in_a_row=3), Budget(tokens=50, errors_in_a_row=3)]
    assert "Maze: stopped, because its budget is used up" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--repeat", "9", "--attempts", "2"], [], ["--repeat", "9", "--until-width=2"]])
def test_the_option_needs_several_tasks_with_one_attempt_and_a_width(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--run", "Maze", "--until-width", "0.1", *options])
    assert "--until-width" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_stops_at_the_first_look_with_a_narrow_interval_and_plays_no_task_twice(tmp_path: Path) -> None:
    options = ["--run", "Maze", "--agent", "oracle", "--repeat", "500", "--until-width", "0.1", "--tracing", "off"]
    ended = run_agentgym(tmp_path, *options, "--json", "--workers", "0", "--concurrency", "8")
    assert ended.returncode == 0, ended.stderr
    batches = json.loads(ended.stdout)["batches"]
    assert [(batch["n_planned"], batch["status"]) for batch in batches] == [(32, "completed"), (32, "completed")]
    assert len({batch["battery_id"] for batch in batches} - {None}) == 1
    tasks = [episode["task_index"] for batch in batches for episode in batch["episodes"]]
    assert sorted(tasks) == list(range(64))
    assert "Maze: 100.0%, 89.3% to 100.0%, after 32 of at most 500 episodes" in ended.stderr
    assert "after 64 of at most 500 episodes" in ended.stderr

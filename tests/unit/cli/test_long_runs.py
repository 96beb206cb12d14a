"""Longer runs: budgets, notifications, several models and adaptive repeats."""

from __future__ import annotations

import json
import math
import random
import shlex
import sys
from pathlib import Path

import pytest

from runner.batch.spec import BatchSpec
from runner.batch.stopping import first_part, is_narrow, next_part, planned_looks
from runner.cli.arguments import parse_options
from runner.cli.run_session import RunSession
from runner.config import Profile
from runner.errors import ConfigError
from runner.results.statistics import wilson_interval
from runner.types import Budget, Tokens, Usage
from tests.support.command import environ_with_environments, run_agentgym
from tests.support.fakes import UpAgent
from tests.support.model_server import ModelServer

RUN = ["--run", "Maze", "--agent", "oracle"]


def session(*argv: str) -> RunSession:
    return RunSession(options=parse_options(argv), profile=Profile(id="p"), data_dir=Path("data"), node="n")


def test_the_options_of_a_budget_reach_the_batch() -> None:
    options = ["--budget-cost", "2.5", "--budget-tokens", "1000", "--budget-errors", "3"]
    (batch,) = session(*RUN, *options).batches()
    assert batch.spec.budget == Budget(cost=2.5, tokens=1000, errors_in_a_row=3)
    (unlimited,) = session(*RUN).batches()
    assert unlimited.spec.budget is None


@pytest.mark.parametrize(
    ("option", "value"), [("cost", "0"), ("cost", "nan"), ("cost", "inf"), ("tokens", "0"), ("errors", "1.5")]
)
def test_a_budget_is_a_positive_number(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options([*RUN, f"--budget-{option}", value])
    assert f"--budget-{option}" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_whose_budget_is_used_up_ends_with_130_and_the_command_for_the_rest(tmp_path: Path) -> None:
    environ = environ_with_environments(tmp_path, "Hostile", agents={"up": "tests.support.fakes:UpAgent"})
    options = ["--run", "Hostile", "--agent", "up", "--repeat", "9", "--workers", "0", "--budget-errors", "2"]
    ended = run_agentgym(tmp_path, *options, "--json", environ=environ)
    assert ended.returncode == 130, ended.stderr
    (batch,) = json.loads(ended.stdout)["batches"]
    assert (batch["status"], batch["interrupted_by"], batch["n_episodes"]) == ("interrupted", "budget", 2)
    assert "Hostile: interrupted: 2 episodes in a row ended with an error; the last one: RuntimeError" in ended.stderr
    assert "--budget-errors 2" in ended.stderr
    assert "--task-index 2 --repeat 7" in ended.stderr
    assert "Start the server again" not in ended.stderr


@pytest.mark.long
def test_the_end_of_each_batch_of_a_run_starts_the_command_of_the_profile(tmp_path: Path) -> None:
    hook, profile = tmp_path / "hook.py", tmp_path / "profile.json.yaml"
    hook.write_text("import sys\nopen('ended.jsonl', 'a').write(sys.stdin.read() + '\\n')\n")
    entries = [{"name": "Maze"}, {"name": "Wordle"}]
    settings = {"id": "p", "environments": {"lightweight": entries}, "notify": {"command": [sys.executable, str(hook)]}}
    profile.write_text(json.dumps(settings))
    ended = run_agentgym(tmp_path, "--battery", "lightweight", "--agent", "oracle", "--config", str(profile))
    assert ended.returncode == 0, ended.stderr
    notifications = [json.loads(line) for line in (tmp_path / "ended.jsonl").read_text().splitlines()]
    assert [(each["env"], each["status"], each["n_success"]) for each in notifications] == [
        ("Maze", "completed", 1),
        ("Wordle", "completed", 1),
    ]
    assert len({each["battery_id"] for each in notifications}) == 1


@pytest.mark.long
def test_a_sweep_plays_the_same_tasks_with_each_model_as_one_battery(tmp_path: Path) -> None:
    options = ["--run", "Maze", "--model", "small, other", "--repeat", "2", "--attempts", "2", "--agent", "tools"]
    with ModelServer(models=("small", "other")) as server:
        endpoint = {"url": server.url, "name": "lab", "kind": "openai"}
        agent = {"mode": "local", "local_fallback": None, "model": "small", "endpoints": [endpoint]}
        (tmp_path / "lab.yaml").write_text(json.dumps({"id": "lab", "agent": agent}))
        ended = run_agentgym(tmp_path, *options, "--config", "./lab.yaml", "--json")
        dry = run_agentgym(tmp_path, *options, "--config", "./lab.yaml", "--dry-run")
        limited = run_agentgym(tmp_path, *options, "--config", "./lab.yaml", "--budget-tokens", "1")
    assert (ended.returncode, dry.returncode) == (0, 0), ended.stderr + dry.stdout
    batches = json.loads(ended.stdout)["batches"]
    assert [batch["model"] for batch in batches] == ["small", "other"]
    assert len({batch["battery_id"] for batch in batches} - {None}) == 1
    small, other = ([(each["task_index"], each["attempt"]) for each in batch["episodes"]] for batch in batches)
    assert sorted(small) == sorted(other) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert "lab: small" in next(iter(batches[0]["answers"]))
    assert limited.returncode == 130
    assert "│ model │" in limited.stdout.replace("┃", "│")
    commands = [line for line in limited.stderr.splitlines() if line.startswith("  agentgym-runner")]
    assert [parse_options(shlex.split(line)[1:]).model for line in commands] == ["small", "other"]


@pytest.mark.parametrize("names", ["a,", ",", "a,b,a", "a, a"])
def test_a_model_is_named_once(names: str) -> None:
    with pytest.raises(ConfigError, match="has an empty or repeated name; give each model once"):
        session("--run", "Maze", "--model", names).batches()


RATES = [percent / 100 for percent in range(1, 100, 2)]


@pytest.mark.parametrize(
    ("n_max", "looks"), [(1, [1]), (32, [32]), (33, [32, 33]), (64, [32, 64]), (500, [32, 64, 128, 256, 500])]
)
def test_the_looks_double_up_to_the_maximum(n_max: int, looks: list[int]) -> None:
    assert planned_looks(n_max) == looks


class Spender(UpAgent):
    """Uses 10 tokens for each answer."""

    last_usage = Usage(endpoint="e", model="m", tokens=Tokens(prompt=7, completion=3))


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


@pytest.mark.parametrize(("n_max", "width"), [(64, 0.2), (200, 0.1), (200, 0.3)])
def test_the_interval_keeps_its_coverage_although_the_run_may_stop_early(n_max: int, width: float) -> None:
    each = [coverage(rate, n_max, width) for rate in RATES]
    assert min(each) > 0.92
    assert sum(each) / len(each) > 0.945


def test_in_a_simulation_of_runs_the_interval_contains_the_true_rate_as_often_as_it_promises() -> None:
    dice, whole = random.Random(7), BatchSpec(env="Maze", agent="oracle", repeat=200, task_index=5)
    n_covered = n_early = 0
    for _ in range(1000):
        rate, n_success = dice.random(), 0
        tasks: list[int] = []
        part: BatchSpec | None = first_part(whole, 0.2)
        while part is not None:
            tasks += range(part.task_index, part.task_index + part.repeat)
            n_success += sum(dice.random() < rate for _ in range(part.repeat))
            part = next_part(part, n_success, len(tasks), None)
        assert tasks == list(range(5, 5 + len(tasks)))
        low, high = wilson_interval(n_success, len(tasks))
        n_covered += low <= rate <= high
        n_early += len(tasks) < 200
        assert high - low <= 0.2 or len(tasks) == 200
    assert 930 <= n_covered <= 970
    assert n_early > 800


@pytest.mark.long
def test_the_parts_share_one_budget(tmp_path: Path) -> None:
    environ = environ_with_environments(
        tmp_path, envs={"Counting": "tests.support.fakes:Counter"}, agents={"spender": f"{__name__}:Spender"}
    )
    options = ["--run", "Counting", "--agent", "spender", "--repeat", "500", "--until-width", "0.01", "--workers", "0"]
    ended = run_agentgym(tmp_path, *options, "--tracing", "off", "--json", "--budget-tokens", "1920", environ=environ)
    batches = json.loads(ended.stdout)["batches"]
    assert [(batch["n_episodes"], batch["status"]) for batch in batches] == [(32, "completed"), (32, "completed")]
    assert "Counting: stopped, because its budget is used up" in ended.stderr


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

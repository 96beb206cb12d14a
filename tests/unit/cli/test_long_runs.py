"""Longer runs: budgets, notifications, several models and adaptive repeats."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from runner.cli.arguments import parse_options
from runner.cli.run_session import RunSession
from runner.config import Profile
from runner.errors import ConfigError
from runner.types import Budget
from tests.support.command import environ_with_environments, run_agentgym
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

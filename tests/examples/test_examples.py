"""The programs in ``examples/`` run from an empty folder, against a real model server, node and bus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.own_agent import ShortMemory
from runner.testing import check_agent
from tests.support.command import COMMAND, REPOSITORY, run_agentgym
from tests.support.model_server import ModelServer
from tests.support.node_process import NodeProcess
from tests.support.perfetto import read_slices

EXAMPLES = REPOSITORY / "examples"


def run_example(cwd: Path, name: str, *arguments: str, expects: int = 0) -> list[str]:
    """Run a program; return its lines on standard output."""
    environ = {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}", "HOME": str(cwd), "AGENTGYM_DATA_DIR": "data"}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expects, done.stderr
    return done.stdout.splitlines()


def test_the_runner_is_embedded(tmp_path: Path) -> None:
    (line,) = run_example(tmp_path, "embed_runner.py", "5")
    assert line.startswith("5 episodes, mean reward 0.") and line.endswith("see rollouts.pftrace")
    slices = [each.name for row in read_slices(tmp_path / "rollouts.pftrace").values() for each in row]
    assert slices.count("episode") == 5


def test_the_environment_keeps_the_contract(tmp_path: Path) -> None:
    assert run_example(tmp_path, "own_environment.py") == ["GuessNumber keeps the contract"]


@pytest.mark.long
def test_the_environment_plays_by_its_import_path(tmp_path: Path) -> None:
    options = ("--run", "own_environment:GuessNumber", "--agent", "random", "--repeat", "20", "--json")
    played = run_agentgym(tmp_path, *options, environ={"PYTHONPATH": str(EXAMPLES)})
    (batch,) = json.loads(played.stdout)["batches"]
    assert batch["n_episodes"] == 20 and batch["outcomes"].keys() == {"success", "truncated"}, played.stderr


def test_the_agent_keeps_the_contract() -> None:
    check_agent(ShortMemory)


def test_the_agent_solves_a_task_with_a_model(tmp_path: Path) -> None:
    with ModelServer() as model:
        lines = run_example(tmp_path, "own_agent.py", f"{model.url}/v1", "test-oracle")
        longest = max(len(json.loads(request.body)["messages"]) for request in model.app.received)
        assert (lines, longest) == (["success in 11 rounds"], 9)  # the task, and four turns of two messages


@pytest.mark.long
def test_the_bus_is_watched_without_a_module_of_ours(tmp_path: Path) -> None:
    assert "import runner" not in (program := (EXAMPLES / "watch_bus.py").read_text("utf-8"))
    assert "from runner" not in program
    data = tmp_path / "data"
    with NodeProcess(data):
        assert run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle", "--repeat", "3").returncode == 0
        info = run_agentgym(tmp_path, "nats-info", "--json").stdout
        lines = run_example(tmp_path, "watch_bus.py", info, "3")
    assert sorted(lines) == [f"'Maze' {task} 'success' 1.0" for task in range(3)]


@pytest.mark.long
def test_an_evaluation_in_ci_fails_where_it_has_become_worse(tmp_path: Path) -> None:
    (first,) = run_example(tmp_path, "evaluate_in_ci.py", "--agent", "oracle")
    assert first.endswith(" is the baseline of later runs")
    assert run_example(tmp_path, "evaluate_in_ci.py", "--agent", "oracle") == ["0 tasks won, 0 lost, p = 1"]
    (worse,) = run_example(tmp_path, "evaluate_in_ci.py", "--agent", "random", expects=3)
    assert worse.startswith("0 tasks won, ")
    assert run_example(tmp_path, "evaluate_in_ci.py", "--agent", "nonsense", expects=2) == []


@pytest.mark.long
def test_an_export_for_training_has_each_solved_task_once(tmp_path: Path) -> None:
    for _ in range(2):
        assert run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle", "--repeat", "20").returncode == 0
    run_example(tmp_path, "export_for_training.py", "env:maze outcome:success", "training")
    sets = [(tmp_path / "training" / f"{name}.jsonl").read_text("utf-8") for name in ("train", "validation")]
    chats = [json.loads(line)["messages"] for text in sets for line in text.splitlines()]
    assert len(chats) == 20 and all(sets)
    assert len({chat[0]["content"] for chat in chats}) == 20 and {chat[-1]["role"] for chat in chats} == {"user"}

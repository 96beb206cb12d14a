"""Files with the tasks of a run: their forms, their order, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.cli import main
from runner.errors import ConfigError
from runner.formats.task_files import group_tasks, read_tasks
from tests.support.command import run_agentgym


@pytest.mark.parametrize(
    "content",
    [
        '[{"item_id": "babyai_1804", "conversations": null}, {"item_id": "babyai_3"}, {"item_id": "babyai_7"}]',
        '{"item_id": "babyai_1804"}\n{"item_id": "babyai_3", "conversations": []}\n{"item_id": "babyai_7"}\n',
        "babyai_1804\n\n# a comment\nBabyAI_3  # another one\nbabyai_7..7",
        "\ufeff1804\r\n3-3\r\n7",
        "[1804, 3, 7]",
        '["babyai_1804", "3", 7]',
    ],
)
def test_every_form_has_the_same_tasks_in_their_order(content: str, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(content, encoding="utf-8")
    assert read_tasks(tmp_path / "tasks", "BabyAI") == {"babyai": (1804, 3, 7)}


def test_a_file_of_several_environments_is_split(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("lmrlgym_wordle_3\nbabyai_0-2\nwordle_1\nsciworld_8\n")
    assert read_tasks(tmp_path / "tasks") == {"wordle": (3, 1), "babyai": (0, 1, 2), "sciworld": (8,)}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("babyai_1\nnonsense\nwordle_2", "nonsense, wordle_2 are no tasks of BabyAI"),
        ("pick_and_place-Mug-None-Desk-308/trial_T20190908_125200", "needs? its games|names of ALFWorld's trials"),
        ("3\n4\n3", "has task 3 of babyai twice"),
        ("9-2", "the range 9-2 has no tasks"),
        ("0-999999999999", "or more than 20,000"),
        ("", "has no tasks"),
        ('[{"id": 3}]', "element 0 has no item_id"),
        ("[[1]]", "element 0 has no item_id"),
        ("[true]", "element 0 has no item_id"),
    ],
)
def test_what_is_no_task_is_named(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(content)
    with pytest.raises(ConfigError, match=problem):
        read_tasks(tmp_path / "tasks", "BabyAI")


def test_a_bare_number_needs_an_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="17 name no task"):
        group_tasks(["17", "babyai_1"], None, "the file")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tasks(tmp_path / "missing")


@given(content=st.binary(max_size=200))
def test_any_bytes_are_tasks_or_a_problem(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "tasks of a property test"
    path.write_bytes(content)
    try:
        found = read_tasks(path, "Maze")
    except ConfigError as exc:
        assert str(path) in str(exc) or "element" in str(exc)
    else:
        assert all(len(set(tasks)) == len(tasks) > 0 for tasks in found.values())


@pytest.mark.long
def test_a_run_plays_the_tasks_of_a_file_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([{"item_id": f"lmrlgym_maze_{n}"} for n in (7, 3, 20)]))
    options = ["--agent", "random", "--workers", "0", "--json"]

    def played(*arguments: str) -> list[tuple[str, list[int]]]:
        completed = run_agentgym(tmp_path, *arguments, *options)
        assert completed.returncode == 0, completed.stderr
        batches = json.loads(completed.stdout)["batches"]
        return [(each["env"], [episode["task_index"] for episode in each["episodes"]]) for each in batches]

    assert played("--run", "Maze", "--tasks", "tasks.json") == [("Maze", [7, 3, 20])]
    assert played("--run", "Maze", "--tasks", "4,9-10", "--attempts", "2") == [("Maze", [4, 4, 9, 9, 10, 10])]
    (tmp_path / "both").write_text("maze_1\nlmrlgym_wordle_2\n")
    assert played("--battery", "lightweight", "--tasks", "both") == [("Maze", [1]), ("Wordle", [2])]
    refused = run_agentgym(tmp_path, "--run", "Maze", "--tasks", "4,25", *options)
    assert (refused.returncode, "Maze has the tasks 0 to 24; there is no task 25" in refused.stderr) == (2, True)
    (tmp_path / "both").write_text("maze_1\nalfworld_2\n")
    refused = run_agentgym(tmp_path, "--battery", "lightweight", "--tasks", "both", *options)
    assert (refused.returncode, "has tasks of alfworld, not in this battery" in refused.stderr) == (2, True)


def test_tasks_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "babyai", "babyai_1804", "3-4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["task"] for each in document["tasks"]] == [1804, 3, 4]
    assert document["tasks"][0]["id"] == "babyai_1804"
    assert document["tasks"][0]["about"].startswith("level 5, seed 45 · ")
    assert main(["tasks", "Maze"]) == 0
    captured = capsys.readouterr()
    assert "lmrlgym_maze_19" in captured.out and "25 tasks in all" in captured.err
    assert main(["tasks", "Maze", "25"]) == 2
    assert "there is no task 25" in capsys.readouterr().err
    assert main(["tasks", "SciWorld"]) == 2

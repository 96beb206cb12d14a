from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from runner.envs.alfworld import ALFWorld
from runner.envs.alfworld.engine import APPLIANCES, TREATMENTS, GoalKind, LocalGame, kind_of
from runner.envs.alfworld.oracle import LocalOracle
from runner.envs.alfworld.tasks import catalogue, local_tasks, playable_games
from runner.envs.data_labels import ALFWORLD_VARIABLE
from runner.errors import ConfigError
from runner.util.package_data import package_resource
from scripts.build_alfworld_data import derive, main, render

TASKS = local_tasks()


def test_the_shipped_tasks_equal_the_scripts_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = package_resource("data", "alfworld", "tasks.json").read_text("utf-8")
    assert render(derive()) == content, "the file is out of date: run the build script"
    assert len(content) < 100_000
    monkeypatch.setattr(sys, "argv", ["build", "--output", str(tmp_path / "tasks.json")])
    main()
    assert (tmp_path / "tasks.json").read_text("utf-8") == content
    licence = package_resource("data", "alfworld", "LICENSE").read_text("utf-8")
    assert "MIT License" in licence
    assert "no results on ALFWorld" in licence


def test_task_kinds_alternate_and_no_task_repeats() -> None:
    tasks = [TASKS.task(index) for index in range(TASKS.n_tasks)]
    kinds = [goal.kind for _, goal in tasks]
    assert len({TASKS.name(index) for index in range(240)}) == TASKS.n_tasks == 240
    assert set(kinds[:6]) == set(get_args(GoalKind))
    assert kinds == kinds[:6] * 40
    assert len({goal.thing for _, goal in tasks}) > 30
    assert len({goal.target for _, goal in tasks}) > 15
    assert {goal.phrase for _, goal in tasks} == {0, 1}


@pytest.mark.parametrize("task_index", range(0, 240, 7))
def test_a_room_follows_the_scene_rules(task_index: int) -> None:
    scene, goal = TASKS.task(task_index)
    names = [*scene.placed, *(name for names in scene.placed.values() for name in names)]
    assert len(set(names)) == len(names)
    for kind, count in Counter(map(kind_of, names)).items():
        assert {f"{kind} {number + 1}" for number in range(count)} <= {*names}
    assert all(scene.accepts(place, name) for place, names in scene.placed.items() for name in names)
    assert not LocalGame(scene, goal).won
    treatment = TREATMENTS.get(goal.kind)
    assert treatment is None or APPLIANCES[treatment].trait in scene.things[goal.thing]


def test_the_oracle_solves_every_task_within_the_round_limit_of_the_profile() -> None:
    rounds = []
    for index in range(TASKS.n_tasks):
        game = LocalGame(*TASKS.task(index))
        oracle, count = LocalOracle(game), 0
        while not game.won and count < 15:
            command = oracle.next_action()
            assert command in game.admissible
            game.act(command)
            count += 1
        assert game.won, index
        rounds.append(count)
    assert (min(rounds), max(rounds)) == (3, 11)


def write_game(root: Path, folder: str, **fields: object) -> Path:
    trial = root / "json_2.1.1" / folder / "trial_T1"
    trial.mkdir(parents=True)
    game = {"pddl_domain": "", "grammar": "", "pddl_problem": "", "solvable": True, **fields}
    (trial / "game.tw-pddl").write_text(json.dumps(game))
    (trial / "traj_data.json").write_text("{}")
    return trial / "game.tw-pddl"


PLAYABLE_FOLDER = "train/look_at_obj_in_light-Mug-None-DeskLamp-308"


def test_only_games_that_alfworld_accepts_are_playable(tmp_path: Path) -> None:
    unseen = write_game(tmp_path, "valid_unseen/pick_and_place_simple-Pen-None-Desk-1")
    train = write_game(tmp_path, PLAYABLE_FOLDER)
    write_game(tmp_path, "train/pick_and_place_with_movable_recep-Pen-Mug-Desk-2")
    write_game(tmp_path, "train/pick_heat_then_place_in_recep-AppleSliced-None-Fridge-3")
    write_game(tmp_path, "train/pick_two_obj_and_place-Pen-None-Desk-4", solvable=False)
    write_game(tmp_path, "train/pick_two_obj_and_place-Pen-None-Desk-5", solvable=None)
    assert playable_games(tmp_path) == [train, unseen]


def test_the_environment_variable_selects_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_game(tmp_path, PLAYABLE_FOLDER)
    monkeypatch.setenv(ALFWORLD_VARIABLE, str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    env = ALFWorld()
    assert (env.n_tasks, env.data_label, env.packages[0]) == (1, "ALFWorld data", "alfworld")
    assert ALFWorld.data_label == "ALFWorld data"
    assert env.task_type == "look_at_obj_in_light-Mug-None-DeskLamp-308/trial_T1"
    monkeypatch.setenv(ALFWORLD_VARIABLE, "")
    assert (ALFWorld().n_tasks, ALFWorld.data_label, ALFWorld.packages) == (240, "local scenes", ())


def test_data_without_the_engine_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_game(tmp_path, PLAYABLE_FOLDER)
    monkeypatch.setenv(ALFWORLD_VARIABLE, str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ALFWORLD_DATA is set, but .* Install agentgym-console\[alfworld\]"):
        ALFWorld()


def test_the_error_names_a_folder_without_games(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"ALFWORLD_DATA is '{re.escape(str(tmp_path))}', which has no json_2.1.1"):
        catalogue(str(tmp_path))


@pytest.mark.parametrize("invalid", [b"{", b"[]", b'{"solvable": "yes"}', b"\xff", b"[" * 100_000])
def test_the_error_names_an_invalid_game_file(tmp_path: Path, invalid: bytes) -> None:
    write_game(tmp_path, PLAYABLE_FOLDER).write_bytes(invalid)
    with pytest.raises(ConfigError, match=r"game\.tw-pddl cannot be read as a game of ALFWorld"):
        catalogue(str(tmp_path))

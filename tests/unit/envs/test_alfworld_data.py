from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from runner.envs.alfworld import ALFWorld, LocalOracle
from runner.envs.alfworld.engine import APPLIANCES, TREATMENTS, GoalKind, LocalGame, kind_of
from runner.envs.alfworld.tasks import catalogue, local_tasks, playable_games
from runner.envs.base import ALFWORLD_VARIABLE
from runner.errors import ConfigError
from runner.formats.task_files import read_tasks
from runner.results.evaluation import PUBLISHED_DATA
from runner.util.files import package_resource
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


def test_a_room_follows_the_scene_rules() -> None:
    for task_index in range(0, 240, 7):
        scene, goal = TASKS.task(task_index)
        names = [*scene.placed, *(name for names in scene.placed.values() for name in names)]
        assert len(set(names)) == len(names), task_index
        for kind, count in Counter(map(kind_of, names)).items():
            assert {f"{kind} {number + 1}" for number in range(count)} <= {*names}, task_index
        assert all(scene.accepts(place, name) for place, names in scene.placed.items() for name in names), task_index
        assert not LocalGame(scene, goal).won, task_index
        treatment = TREATMENTS.get(goal.kind)
        assert treatment is None or APPLIANCES[treatment].trait in scene.things[goal.thing], task_index


@pytest.mark.long
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


def test_agentgyms_lists_number_the_games_of_compat_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, configs = tmp_path / "data", tmp_path / "AgentGym" / "agentenv-alfworld" / "configs"
    first, second = "pick_and_place_simple-Pen-None-Desk-1", "look_at_obj_in_light-Mug-None-DeskLamp-308"
    write_game(data, f"train/{first}")
    write_game(data, f"train/{second}")
    write_game(data, f"valid_train/{first}")
    configs.mkdir(parents=True)
    for name, folders in (("mappings_train.json", [first, second]), ("mappings_test.json", [first])):
        listed = [{"item_id": n, "task_type": folder, "task_id": "trial_T1"} for n, folder in enumerate(folders)]
        (configs / name).write_text(json.dumps(listed))
    monkeypatch.setenv(ALFWORLD_VARIABLE, str(data))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    by_path = catalogue(str(data))
    assert [by_path.name(number) for number in range(3)][:2] == [f"{second}/trial_T1", f"{first}/trial_T1"]
    monkeypatch.setenv("AGENTENV_PATH", str(tmp_path / "AgentGym"))
    assert ALFWorld().data_label == "ALFWorld data"
    env = ALFWorld(mode="compat")
    assert (env.n_tasks, env.data_label) == (3, "ALFWorld data, AgentGym's numbers")
    assert env.data_label in PUBLISHED_DATA
    names = [catalogue(str(data), configs).name(number) for number in range(3)]
    assert names == [f"{first}/trial_T1", f"{second}/trial_T1", f"{first}/trial_T1"]
    (tmp_path / "tasks").write_text(f"{second}/trial_T1\n")
    assert read_tasks(tmp_path / "tasks") == {"alfworld": (1,)}


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

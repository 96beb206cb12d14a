"""The local engine and ALFWorld's own engine (extra ``alfworld``) give equal results in equal rooms.

The only difference is the text of ``help``. Most rooms are reduced, because ALFWorld is slow in large ones.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runner.envs.alfworld import ALFWorld, LocalOracle
from runner.envs.alfworld.engine import HELP, Goal, LocalGame, Scene, kind_of
from runner.envs.alfworld.tasks import GameFile, RealGame, local_tasks
from runner.errors import EnvironmentFault
from runner.types import Action, Mode
from tests.support.pddl_writer import pddl_problem

if importlib.util.find_spec("alfworld") is None:
    pytest.skip("run `.venv/bin/pip install alfworld==0.4.2` (Python 3.11 or 3.12)", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)
NONSENSE = ("", "dance", "Look", "go to", "go to moon 1", "take fridge 1 from fridge 1", "look \n")
MANIPULATIONS = ("open", "close", "take", "move", "heat", "cool", "clean", "slice", "use")
TASKS = local_tasks()


@pytest.fixture(scope="module", autouse=True)
def rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Return the PDDL domain and the grammar of ALFWorld, whose import creates a folder for its data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALFWORLD_DATA", str(tmp_path_factory.mktemp("alfworld")))
        info = importlib.import_module("alfworld.info")
    yield Path(info.ALFRED_PDDL_PATH).read_text("utf-8"), Path(info.ALFRED_TWL2_PATH).read_text("utf-8")


def reduced_task(task_index: int, n_places: int = 7) -> tuple[Scene, Goal]:
    """Return a shipped task in a smaller room: the receptacles it needs, then one of each kind."""
    scene, goal = TASKS.task(task_index)
    needed = {goal.thing, goal.target, "sinkbasin", "microwave", "fridge"}
    needed_places = [place for place, names in scene.placed.items() if needed & {kind_of(place), *map(kind_of, names)}]
    firsts = [place for place in scene.placed if place.endswith(" 1")]
    kept = list(dict.fromkeys([*needed_places, *firsts]))[: max(n_places, len(needed_places))]
    numbers = Counter[str]()

    def renumber(name: str) -> str:
        numbers[kind_of(name)] += 1
        return f"{kind_of(name)} {numbers[kind_of(name)]}"

    placed = {renumber(place): [renumber(name) for name in scene.placed[place]] for place in kept}
    return msgspec.structs.replace(scene, placed=placed), goal


def game_file(rules: tuple[str, str], scene: Scene, goal: Goal) -> GameFile:
    domain, grammar = rules
    return GameFile(domain, grammar.replace("UNKNOWN GOAL", str(goal)), pddl_problem(scene, goal))


def start_both(rules: tuple[str, str], scene: Scene, goal: Goal) -> tuple[LocalGame, RealGame]:
    ours, theirs = LocalGame(scene, goal), RealGame(game_file(rules, scene, goal), "it")
    assert ours.opening == theirs.opening
    assert (ours.admissible, ours.won) == (theirs.admissible, theirs.won)
    return ours, theirs


def compare(ours: LocalGame, theirs: RealGame, command: str) -> None:
    actual, expected = ours.act(command), theirs.act(command)
    assert actual == (HELP if expected.lstrip().startswith("Available commands:") else expected), command
    assert (ours.admissible, ours.won) == (theirs.admissible, theirs.won), command


def random_command(game: LocalGame, rng: random.Random) -> str:
    """Return a random command: rarely nonsense, mostly one that changes the state."""
    if rng.random() < 0.05:
        return rng.choice(NONSENSE)
    changing = [command for command in game.admissible if command.startswith(MANIPULATIONS)]
    return rng.choice(changing if changing and rng.random() < 0.6 else game.admissible)


def finish(ours: LocalGame, theirs: RealGame) -> None:
    oracle = LocalOracle(ours)
    for _ in range(15):
        if ours.won:
            return
        compare(ours, theirs, oracle.next_action())
    assert ours.won


@pytest.mark.parametrize("task_index", range(6))
def test_random_walks_and_the_solution_are_equal(task_index: int, rules: tuple[str, str]) -> None:
    ours, theirs = start_both(rules, *reduced_task(task_index))
    rng = random.Random(task_index)
    for _ in range(60):
        compare(ours, theirs, random_command(ours, rng))
    finish(ours, theirs)


def test_repeated_heating_cooling_and_cleaning_are_equal(rules: tuple[str, str]) -> None:
    ours, theirs = start_both(rules, *reduced_task(3))
    compare(ours, theirs, "go to microwave 1")
    compare(ours, theirs, "open microwave 1")
    compare(ours, theirs, "take apple 1 from microwave 1")
    appliances = {"heat": "microwave 1", "cool": "fridge 1", "clean": "sinkbasin 1"}
    for treatment in ("heat", "cool", "heat", "clean", "cool"):
        place = appliances[treatment]
        for command in (f"go to {place}", f"{treatment} apple 1 with {place}", "examine apple 1"):
            compare(ours, theirs, command)
    assert ours.states["apple 1"] == {"cool", "clean"}


def test_a_complete_room_is_equal(rules: tuple[str, str]) -> None:
    ours, theirs = start_both(rules, *TASKS.task(3))
    finish(ours, theirs)


def test_concurrent_games_do_not_interfere(rules: tuple[str, str]) -> None:
    rng = random.Random(0)
    pairs = [start_both(rules, *reduced_task(task_index, 3)) for task_index in (1, 7)]
    for _ in range(8):
        for ours, theirs in pairs:
            compare(ours, theirs, random_command(ours, rng))


def test_the_process_state_is_unchanged(rules: tuple[str, str]) -> None:
    before = (list(sys.argv), dict(os.environ), sys.stdout)
    RealGame(game_file(rules, *reduced_task(1, 3)), "it")
    assert (sys.argv, dict(os.environ), sys.stdout) == before


def test_an_invalid_game_is_named(rules: tuple[str, str]) -> None:
    broken = msgspec.structs.replace(game_file(rules, *reduced_task(1, 3)), pddl_problem="(define")
    with pytest.raises(EnvironmentFault, match=r"cannot play some/file: ParseError"):
        RealGame(broken, "some/file")
    start_both(rules, *reduced_task(1, 3))


def write_data(root: Path, game: GameFile) -> None:
    """Write a data folder with one game, in the wording of ALFWorld 0.3."""
    trial = root / "json_2.1.1" / "train" / "pick_cool_then_place_in_recep-Pan-None-DiningTable-1" / "trial_T1"
    trial.mkdir(parents=True)
    grammar = game.grammar.replace("move {o} to {r}", "put {o} in/on {r}").replace(
        "You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."
    )
    fields = {**msgspec.structs.asdict(game), "grammar": grammar, "solvable": True, "walkthrough": []}
    (trial / "game.tw-pddl").write_text(json.dumps(fields))
    (trial / "traj_data.json").write_text('{"task_type": "pick_cool_then_place_in_recep"}')


@pytest.mark.parametrize("mode", ["strict", "compat"])
def test_the_oracle_solves_a_game_of_the_data(
    mode: Mode, rules: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, goal = reduced_task(4)
    write_data(tmp_path, game_file(rules, scene, goal))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    env = ALFWorld(mode=mode)
    assert (env.data_label, env.n_tasks) == ("ALFWorld data", 1)
    env.reset(task_index=0)
    assert env.observation.endswith(f"\nYour task is to: {goal}.")
    oracle, done, texts = env.oracle(0), False, list[str]()
    env.step(Action(text="look"))
    while not done:
        texts.append(oracle.next_action())
        _, reward, done = env.step(Action(text=texts[-1]))
    last = ("You move the", " to the ") if mode == "strict" else ("You put the", " in/on the ")
    assert reward == 1.0
    assert len(texts) < 12
    assert env.observation.startswith(last[0])
    assert last[1] in env.observation
    assert env.task_type.startswith("pick_cool_then_place_in_recep-")

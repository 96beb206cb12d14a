from __future__ import annotations

import pytest

from runner.envs.alfworld.engine import NOTHING_HAPPENS, LocalGame
from runner.envs.alfworld.oracle import LocalOracle, make_planner
from runner.envs.alfworld.pddl import pddl_id, pddl_problem
from runner.envs.alfworld.scene import PHRASES, Goal, GoalKind, ReceptacleKind, Scene
from runner.envs.alfworld.tasks import local_tasks

SCENE = Scene(
    things={
        "apple": frozenset({"pickupable", "heatable", "coolable", "cleanable", "sliceable"}),
        "mug": frozenset({"pickupable", "container", "heatable"}),
        "knife": frozenset({"pickupable", "blade"}),
        "desklamp": frozenset({"toggleable"}),
    },
    receptacles={
        "cabinet": ReceptacleKind(True, frozenset({"apple", "mug"})),
        "fridge": ReceptacleKind(True, frozenset({"apple"})),
        "microwave": ReceptacleKind(True, frozenset({"apple", "mug"})),
        "sinkbasin": ReceptacleKind(False, frozenset({"apple"})),
        "desk": ReceptacleKind(False, frozenset({"apple", "knife", "desklamp"})),
    },
    placed={
        "desk 1": ("desklamp 1", "knife 1", "apple 2"),
        "cabinet 1": ("apple 1", "mug 1"),
        "microwave 1": (),
        "fridge 1": (),
        "sinkbasin 1": (),
    },
)
GET = ("go to cabinet 1", "open cabinet 1", "take apple 1 from cabinet 1")
CUT = ("take knife 1 from desk 1", "slice apple 2 with knife 1", "move knife 1 to desk 1", "take apple 2 from desk 1")
HEAT = ("go to microwave 1", "heat {} with microwave 1")
COOL = ("go to fridge 1", "cool {} with fridge 1")
CLEAN = ("go to sinkbasin 1", "clean {} with sinkbasin 1")


def game(kind: GoalKind = "pick_and_place_simple", thing: str = "mug", target: str = "desk") -> LocalGame:
    return LocalGame(SCENE, Goal(kind, thing, target, 0))


def act_all(play: LocalGame, *commands: str) -> str:
    """Return the last observation; every command must be admissible."""
    for command in commands:
        assert command in play.admissible, (command, play.admissible)
        answer = play.act(command)
        assert answer != NOTHING_HAPPENS
    return answer


def test_looking_around() -> None:
    play = game()
    assert play.opening == (
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a desk 1, a fridge 1, "
        "a microwave 1, and a sinkbasin 1.\n\nYour task is to: put a mug in desk."
    )
    assert act_all(play, "look") == "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert act_all(play, "go to desk 1") == (
        "You arrive at desk 1. On the desk 1, you see a apple 2, a desklamp 1, and a knife 1."
    )
    assert act_all(play, "look") == "You are facing the desk 1. Next to it, you see nothing."
    assert act_all(play, "go to sinkbasin 1") == "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."


def test_doors() -> None:
    play = game()
    assert act_all(play, "go to cabinet 1") == "You arrive at cabinet 1. The cabinet 1 is closed."
    assert play.act("take apple 1 from cabinet 1") == NOTHING_HAPPENS
    inside = "The cabinet 1 is open. In it, you see a apple 1, and a mug 1."
    assert act_all(play, "open cabinet 1") == f"You open the cabinet 1. {inside}"
    assert play.act("open cabinet 1") == NOTHING_HAPPENS
    assert act_all(play, "go to desk 1", "go to cabinet 1") == f"You arrive at cabinet 1. {inside}"
    assert act_all(play, "take mug 1 from cabinet 1") == "You pick up the mug 1 from the cabinet 1."
    assert act_all(play, "close cabinet 1") == "You close the cabinet 1."
    assert play.act("move mug 1 to cabinet 1") == NOTHING_HAPPENS
    assert act_all(play, "examine cabinet 1") == "The cabinet 1 is closed."


def test_hands_hold_one_thing() -> None:
    play = game()
    assert act_all(play, "inventory") == "You are not carrying anything."
    assert act_all(play, *GET, "inventory") == "You are carrying: a apple 1."
    assert play.act("take mug 1 from cabinet 1") == NOTHING_HAPPENS
    assert act_all(play, "move apple 1 to cabinet 1") == "You move the apple 1 to the cabinet 1."
    assert (
        act_all(play, "take mug 1 from cabinet 1", "examine mug 1") == "This is a normal mug 1. In it, you see nothing."
    )
    act_all(play, "go to sinkbasin 1")
    assert play.act("move mug 1 to sinkbasin 1") == NOTHING_HAPPENS


@pytest.mark.parametrize(
    ("done", "description"),
    [
        ((), "There's nothing special about apple 2."),
        (HEAT, "This is a hot apple 2."),
        (COOL, "This is a cold apple 2."),
        (CLEAN, "This is a clean apple 2."),
        ((*HEAT, *COOL), "This is a cold apple 2."),
        ((*COOL, *HEAT), "This is a hot apple 2."),
        ((*HEAT, *CLEAN), "This is a hot and clean apple 2."),
        ((*COOL, *CLEAN), "This is a cool and clean apple 2."),
    ],
)
def test_treatments_change_the_description_of_objects(done: tuple[str, ...], description: str) -> None:
    commands = [command.format("apple 2") for command in done]
    play = game()
    assert act_all(play, "go to desk 1", "take apple 2 from desk 1", *commands, "examine apple 2") == description
    play = game()
    sliced = description.replace("There's nothing special about", "This is a").replace("cold", "cool")
    sliced = sliced.replace("apple 2", "sliced apple 2")
    assert act_all(play, "go to desk 1", *CUT, *commands, "examine apple 2") == sliced


def test_answers_to_treatments() -> None:
    play = game()
    assert (
        act_all(play, *GET, *(each.format("apple 1") for each in HEAT)) == "You heat the apple 1 using the microwave 1."
    )
    assert act_all(play, *(each.format("apple 1") for each in COOL)) == "You cool the apple 1 using the fridge 1."
    assert act_all(play, *(each.format("apple 1") for each in CLEAN)) == "You clean the apple 1 using the sinkbasin 1."
    play = game()
    assert act_all(play, "go to desk 1", *CUT[:2]) == "You sliced the apple 2 with the knife 1."
    assert act_all(play, "use desklamp 1", "use desklamp 1") == "You turn on the desklamp 1."
    assert "take desklamp 1 from desk 1" not in play.admissible


@pytest.mark.parametrize("kind", PHRASES)
def test_each_task_is_won_exactly_by_its_goal(kind: GoalKind) -> None:
    target = {"look_at_obj_in_light": "desklamp", "pick_and_place_simple": "fridge"}.get(kind, "desk")
    play = LocalGame(SCENE, Goal(kind, "apple", target, 1))
    oracle = make_planner(play)
    assert isinstance(oracle, LocalOracle)
    assert not play.won
    wins = [wins_by(play, oracle.next_action())]
    while not wins[-1] and len(wins) < 12:
        wins.append(wins_by(play, oracle.next_action()))
    assert wins[-1]


def wins_by(play: LocalGame, *commands: str) -> bool:
    act_all(play, *commands)
    return play.won


def test_a_thing_of_another_state_or_place_does_not_win() -> None:
    play = LocalGame(SCENE, Goal("pick_heat_then_place_in_recep", "apple", "desk", 0))
    assert not wins_by(play, *GET, "go to desk 1", "move apple 1 to desk 1")
    play = LocalGame(SCENE, Goal("look_at_obj_in_light", "apple", "desklamp", 0))
    assert not wins_by(play, "go to desk 1", "use desklamp 1")
    assert wins_by(play, "take apple 2 from desk 1")
    assert not wins_by(play, "go to fridge 1")


def test_the_oracle_finds_its_way_from_anywhere() -> None:
    for kind in PHRASES:
        target = "desklamp" if kind == "look_at_obj_in_light" else "desk"
        detours = [
            ("go to desk 1", "take knife 1 from desk 1", "go to fridge 1"),
            ("go to desk 1", "take knife 1 from desk 1", "go to cabinet 1", "open cabinet 1"),
            ("go to cabinet 1", "open cabinet 1", "take mug 1 from cabinet 1", "close cabinet 1"),
            (*GET, "go to fridge 1", "open fridge 1", "move apple 1 to fridge 1", "close fridge 1"),
            (
                *GET,
                "go to microwave 1",
                "heat apple 1 with microwave 1",
                "go to fridge 1",
                "cool apple 1 with fridge 1",
            ),
        ]
        for detour in detours:
            play = LocalGame(SCENE, Goal(kind, "apple", target, 0))
            act_all(play, *detour)
            oracle = LocalOracle(play)
            for _ in range(15):
                if play.won:
                    break
                act_all(play, oracle.next_action())
            assert play.won, (kind, detour)


def test_a_problem_names_everything_that_is_there() -> None:
    assert pddl_id("drawer 2") == "drawer_bar__plus_998"
    assert pddl_id("sinkbasin 1") == "sink_bar__plus_999_bar_sinkbasin"
    for task_index in range(6):
        scene, goal = local_tasks().task(task_index)
        text = pddl_problem(scene, goal)
        assert text.count("(") == text.count(")")
        names = {*scene.placed, *(name for names in scene.placed.values() for name in names)}
        assert all(f" {pddl_id(name)} " in text for name in names)

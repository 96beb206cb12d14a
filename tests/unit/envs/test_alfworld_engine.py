from __future__ import annotations

import pytest

from runner.envs.alfworld import LocalOracle
from runner.envs.alfworld.engine import NOTHING_HAPPENS, PHRASES, Goal, GoalKind, LocalGame, ReceptacleKind, Scene
from runner.envs.alfworld.tasks import local_tasks
from tests.support.pddl_writer import pddl_id, pddl_problem

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


def new_game(kind: GoalKind = "pick_and_place_simple", thing: str = "mug", target: str = "desk") -> LocalGame:
    return LocalGame(SCENE, Goal(kind, thing, target, 0))


def act_all(game: LocalGame, *commands: str) -> str:
    """Return the last observation; every command must be admissible."""
    for command in commands:
        assert command in game.admissible, (command, game.admissible)
        answer = game.act(command)
        assert answer != NOTHING_HAPPENS
    return answer


def test_look_and_go_to_describe_the_room() -> None:
    game = new_game()
    assert game.opening == (
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a desk 1, a fridge 1, "
        "a microwave 1, and a sinkbasin 1.\n\nYour task is to: put a mug in desk."
    )
    assert act_all(game, "look") == "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert act_all(game, "go to desk 1") == (
        "You arrive at desk 1. On the desk 1, you see a apple 2, a desklamp 1, and a knife 1."
    )
    assert act_all(game, "look") == "You are facing the desk 1. Next to it, you see nothing."
    assert act_all(game, "go to sinkbasin 1") == "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."


def test_a_closed_receptacle_hides_its_contents() -> None:
    game = new_game()
    assert act_all(game, "go to cabinet 1") == "You arrive at cabinet 1. The cabinet 1 is closed."
    assert game.act("take apple 1 from cabinet 1") == NOTHING_HAPPENS
    inside = "The cabinet 1 is open. In it, you see a apple 1, and a mug 1."
    assert act_all(game, "open cabinet 1") == f"You open the cabinet 1. {inside}"
    assert game.act("open cabinet 1") == NOTHING_HAPPENS
    assert act_all(game, "go to desk 1", "go to cabinet 1") == f"You arrive at cabinet 1. {inside}"
    assert act_all(game, "take mug 1 from cabinet 1") == "You pick up the mug 1 from the cabinet 1."
    assert act_all(game, "close cabinet 1") == "You close the cabinet 1."
    assert game.act("move mug 1 to cabinet 1") == NOTHING_HAPPENS
    assert act_all(game, "examine cabinet 1") == "The cabinet 1 is closed."


def test_only_one_object_can_be_carried() -> None:
    game = new_game()
    assert act_all(game, "inventory") == "You are not carrying anything."
    assert act_all(game, *GET, "inventory") == "You are carrying: a apple 1."
    assert game.act("take mug 1 from cabinet 1") == NOTHING_HAPPENS
    assert act_all(game, "move apple 1 to cabinet 1") == "You move the apple 1 to the cabinet 1."
    assert (
        act_all(game, "take mug 1 from cabinet 1", "examine mug 1") == "This is a normal mug 1. In it, you see nothing."
    )
    act_all(game, "go to sinkbasin 1")
    assert game.act("move mug 1 to sinkbasin 1") == NOTHING_HAPPENS


@pytest.mark.parametrize(
    ("treatments", "description"),
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
def test_treatments_change_the_description_of_an_object(treatments: tuple[str, ...], description: str) -> None:
    commands = [command.format("apple 2") for command in treatments]
    game = new_game()
    assert act_all(game, "go to desk 1", "take apple 2 from desk 1", *commands, "examine apple 2") == description
    game = new_game()
    sliced = description.replace("There's nothing special about", "This is a").replace("cold", "cool")
    sliced = sliced.replace("apple 2", "sliced apple 2")
    assert act_all(game, "go to desk 1", *CUT, *commands, "examine apple 2") == sliced


def test_treatments_are_confirmed() -> None:
    game = new_game()
    assert (
        act_all(game, *GET, *(each.format("apple 1") for each in HEAT)) == "You heat the apple 1 using the microwave 1."
    )
    assert act_all(game, *(each.format("apple 1") for each in COOL)) == "You cool the apple 1 using the fridge 1."
    assert act_all(game, *(each.format("apple 1") for each in CLEAN)) == "You clean the apple 1 using the sinkbasin 1."
    game = new_game()
    assert act_all(game, "go to desk 1", *CUT[:2]) == "You sliced the apple 2 with the knife 1."
    assert act_all(game, "use desklamp 1", "use desklamp 1") == "You turn on the desklamp 1."
    assert "take desklamp 1 from desk 1" not in game.admissible


@pytest.mark.parametrize("kind", PHRASES)
def test_each_goal_kind_is_won_only_once_it_is_reached(kind: GoalKind) -> None:
    target = {"look_at_obj_in_light": "desklamp", "pick_and_place_simple": "fridge"}.get(kind, "desk")
    game = LocalGame(SCENE, Goal(kind, "apple", target, 1))
    oracle = LocalOracle(game)
    assert not game.won
    wins = [is_won_after(game, oracle.next_action())]
    while not wins[-1] and len(wins) < 12:
        wins.append(is_won_after(game, oracle.next_action()))
    assert wins[-1]


def is_won_after(game: LocalGame, *commands: str) -> bool:
    act_all(game, *commands)
    return game.won


def test_an_object_in_the_wrong_state_or_place_does_not_win() -> None:
    game = LocalGame(SCENE, Goal("pick_heat_then_place_in_recep", "apple", "desk", 0))
    assert not is_won_after(game, *GET, "go to desk 1", "move apple 1 to desk 1")
    game = LocalGame(SCENE, Goal("look_at_obj_in_light", "apple", "desklamp", 0))
    assert not is_won_after(game, "go to desk 1", "use desklamp 1")
    assert is_won_after(game, "take apple 2 from desk 1")
    assert not is_won_after(game, "go to fridge 1")


def test_the_oracle_recovers_from_every_detour() -> None:
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
            game = LocalGame(SCENE, Goal(kind, "apple", target, 0))
            act_all(game, *detour)
            oracle = LocalOracle(game)
            for _ in range(15):
                if game.won:
                    break
                act_all(game, oracle.next_action())
            assert game.won, (kind, detour)


def test_a_pddl_problem_names_every_object() -> None:
    assert pddl_id("drawer 2") == "drawer_bar__plus_998"
    assert pddl_id("sinkbasin 1") == "sink_bar__plus_999_bar_sinkbasin"
    for task_index in range(6):
        scene, goal = local_tasks().task(task_index)
        text = pddl_problem(scene, goal)
        assert text.count("(") == text.count(")")
        names = {*scene.placed, *(name for names in scene.placed.values() for name in names)}
        assert all(f" {pddl_id(name)} " in text for name in names)

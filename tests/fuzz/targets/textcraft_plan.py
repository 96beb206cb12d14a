"""The oracle's plan from a TextCraft server's texts; the input is the first one, then replies after ``\\x00``."""

from __future__ import annotations

from runner.envs.http.dialects import sqlgym_actions, textcraft_actions, webshop_actions
from runner.envs.textcraft import ListingPlanner
from runner.errors import AgentFault

TOKENS = (
    b"craft 1 a using 1 b\n",
    b"craft 4 oak planks using 1 oak log\n",
    b"\nGoal: craft a.",
    b" using 9999 ",
    b", 1 b",
    b"\x00Could not find b",
    b"\x00Got 1 b",
)
MAX_STEPS = 40


def check(data: bytes) -> None:
    opening, *replies = data.decode("utf-8", "replace").split("\x00")
    assert all(isinstance(action, str) for action in textcraft_actions(opening))
    sqlgym_actions(opening)
    webshop_actions(opening, has_search_bar=True, clickables=replies[:3])
    planner = ListingPlanner()
    try:
        planner.start(opening)
        for number in range(MAX_STEPS):
            action = planner.next_action()
            assert action.startswith(("get ", "craft ")), action
            expected = planner.observe(replies[number] if number < len(replies) else f"Got {action[4:]}")
            assert expected
    except AgentFault as fault:
        assert str(fault)
    except StopIteration:
        return

"""Extraction of the action from a model's text, by the rule of each environment; model text is never evaluated.

The rules are those of AgentGym's clients, ``agentenv/agentenv/envs/<environment>.py`` (``lmrlgym.py`` for Maze and
Wordle), so an answer means the same in AgentGym and in this runner.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

ActionStyle: TypeAlias = Literal["once", "first", "last", "sql", "fence", "raw"]
"""Place of the action: the only ``Action:`` line, after the first or last ``Action:``, in a block, or all the text."""

ACTION_MARK = "Action:"
EXPECTED_FORMAT: dict[ActionStyle, str] = {
    "once": 'exactly one line "Action: <action>"',
    "first": 'a line "Action: <action>"',
    "last": 'a line "Action: <action>"',
    "sql": "one query in a ```sql block",
    "fence": "one action between triple backticks",
    "raw": "a text that is not empty",
}

_STYLES: dict[str, ActionStyle] = {
    "babyai": "once",
    "textcraft": "once",
    "maze": "first",
    "wordle": "first",
    "alfworld": "last",
    "sciworld": "last",
    "webshop": "last",
    "sqlgym": "sql",
    "webarena": "fence",
    **dict.fromkeys(("searchqa", "academia", "movie", "sheet", "todo", "weather"), "raw"),
}
_LINE = re.compile(rf"{ACTION_MARK}\s*(.*)")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9, ]+")
_SQL = re.compile(r"```sql(?:ite)?\b", re.IGNORECASE)


def action_style(env: str) -> ActionStyle:
    """Return the extraction rule of an environment; ``last`` for unknown environments. ``env`` is case-insensitive."""
    return _STYLES.get(env.lower(), "last")


def parse_action(text: str, style: ActionStyle) -> str | None:
    """Return the action in a model's text; None if the text contains no action."""
    text = text.strip().removesuffix("</s>").rstrip()
    match style:
        case "once":
            actions = _LINE.findall(text)
            action = _NOT_PLAIN.sub("", actions[0]) if len(actions) == 1 else ""
        case "first":
            action = text.partition(ACTION_MARK)[2]
        case "last":
            action = text.rpartition(ACTION_MARK)[2] if ACTION_MARK in text else ""
        case "sql":
            blocks = list(_SQL.finditer(text))
            action = text[blocks[-1].end() :].partition("```")[0] if blocks else ""
        case "fence":
            action = _first_block(text)
        case "raw":
            action = text
    return action.strip() or None


def _first_block(text: str) -> str:
    # includes the backticks, because WebArena's server parses them itself
    block, closed, _ = text.partition("```")[2].partition("```")
    return f"```{block.strip()}```" if closed and block.strip() else ""

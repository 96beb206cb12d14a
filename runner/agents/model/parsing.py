"""The action in a model's text, by the rule of each environment; what a model wrote is never evaluated.

The rules are those of AgentGym's own clients, so that an answer means the same here and there.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

ActionStyle: TypeAlias = Literal["once", "first", "last", "sql", "fence", "raw"]
"""Where the action is: on the only line that begins one, after the first or the last mark, or in a block."""

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
    """The rule of an environment, by its name in any case; what is not known is read after the last mark."""
    return _STYLES.get(env.lower(), "last")


def parse_action(text: str, style: ActionStyle) -> str | None:
    """The action that a text names, None where it names none."""
    text = text.strip().removesuffix("</s>").rstrip()
    match style:
        case "once":
            found = _LINE.findall(text)
            action = _NOT_PLAIN.sub("", found[0]) if len(found) == 1 else ""
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
    """The first block with its backticks, as WebArena's server looks for them itself."""
    block, closed, _ = text.partition("```")[2].partition("```")
    return f"```{block.strip()}```" if closed and block.strip() else ""

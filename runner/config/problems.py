"""A place in a profile, and what is wrong there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from runner.config.document import Value

MAX_PROBLEMS = 20

Where: TypeAlias = tuple[str | int, ...]
"""Keys, and indices of lists, from the top of the file."""

Problem: TypeAlias = tuple[Where, str]

Show: TypeAlias = Callable[[Where, Value], str]
"""How an error quotes the value at a place."""


def where_text(where: Where) -> str:
    """A place as people write it, e.g. ``environments.lightweight[2].port``."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"\w+", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text or "the file as a whole"

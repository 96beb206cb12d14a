"""What is typed into the run form, and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.safe_text import Safe, own
from runner.events.control import StartArgs

MAX_NUMBER: Final = 2**62
MAX_EPISODES: Final = 1_000_000

FieldId: TypeAlias = Literal[
    "repeat", "attempts", "task_index", "seed", "concurrency", "max_rounds", "max_duration_sec"
]
"""As in ``StartArgs``."""


class Field(NamedTuple):
    """A number: name, bounds, what it is for; ``optional`` ones are the profile's when left empty."""

    id: FieldId
    title: Safe
    least: int
    most: int
    default: str
    about: Safe
    optional: bool = False
    fraction: bool = False


FIELDS: Final = (
    Field("repeat", own("tasks"), 1, MAX_EPISODES, "1", own("one after the other")),
    Field("attempts", own("attempts"), 1, MAX_EPISODES, "1", own("of each task")),
    Field("task_index", own("first task"), 0, MAX_NUMBER - 1, "0", own("counted from 0")),
    Field("seed", own("seed"), 0, MAX_NUMBER - 1, "0", own("for the agent's dice")),
    Field("concurrency", own("at once"), 1, 256, "", own("episodes"), optional=True),
    Field("max_rounds", own("rounds"), 1, 100_000, "", own("at most, each"), optional=True),
    Field("max_duration_sec", own("seconds"), 0, 1_000_000, "", own("at most, each"), optional=True, fraction=True),
)
BY_PROFILE: Final = own("profile's")

_WHOLE: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_FRACTION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)


class Parsed(NamedTuple):
    """What to start, or what is wrong by field (``envs`` for the environments)."""

    args: StartArgs | None
    errors: Mapping[str, Safe]


def parse(texts: Mapping[FieldId, str], *, envs: Sequence[str], agent: str, model: str | None, batch_id: str) -> Parsed:
    """Read a form."""
    values: dict[str, int | float | None] = {}
    errors: dict[str, Safe] = {}
    for field in FIELDS:
        value, error = number(field, texts.get(field.id, ""))
        values[field.id] = value
        if error is not None:
            errors[field.id] = error
    if not envs:
        errors["envs"] = own("choose one")
    repeat, attempts = values["repeat"], values["attempts"]
    if repeat and attempts and repeat * attempts > MAX_EPISODES:
        errors["attempts"] = own(f"more than {MAX_EPISODES:,} episodes")
    if errors:
        return Parsed(None, errors)
    given = {"batch_id": batch_id, "envs": list(envs), "agent": agent, "model": model}
    return Parsed(msgspec.convert(values | given, StartArgs), {})


def number(field: Field, text: str) -> tuple[int | float | None, Safe | None]:
    """The number, None for an empty one that may be, or what is wrong."""
    text = text.strip()
    if not text and field.optional:
        return None, None
    if (_FRACTION if field.fraction else _WHOLE).fullmatch(text) is None:
        return None, own("a number, please" if field.fraction else "a whole number, please")
    value = float(text) if field.fraction else int(text)
    if field.fraction and value == 0:
        return None, own("more than 0")
    if not field.least <= value <= field.most:
        return None, own(f"at least {field.least}" if value < field.least else f"at most {field.most:,}")
    return value, None


def texts_of(args: StartArgs | None) -> dict[FieldId, str]:
    """What to type to start the same again; the defaults for nothing."""
    if args is None:
        return {field.id: field.default for field in FIELDS}
    return {field.id: _text(getattr(args, field.id)) for field in FIELDS}


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

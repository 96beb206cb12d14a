"""Fields of the run form with their bounds, and conversion between the typed texts and a start request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.safe_text import sanitize_message
from runner.errors import ConfigError
from runner.events.control import StartArgs
from runner.types import Budget

INTEGER_LIMIT: Final = 2**62
MAX_EPISODES: Final = 1_000_000
MAX_TASKS: Final = 5_000
"""Maximum number of tasks in a request, which has at most 64 KiB."""

FieldId: TypeAlias = Literal[
    "repeat",
    "attempts",
    "task_index",
    "seed",
    "concurrency",
    "workers",
    "max_rounds",
    "max_duration_sec",
    "until_width",
    "cost",
    "tokens",
    "errors_in_a_row",
]
"""Id of a form field, which is the name of the field in ``StartArgs`` or in its budget."""

MAX_MODELS_CHARS: Final = 2000
"""Largest number of characters in the text with several models, and in the path of a file."""


class FormField(NamedTuple):
    """A field of the run form for a number.

    Attributes:
        default: text of the field in a new form.
        optional: whether the field may be empty; the profile then supplies the number.
        fraction: whether the number may have decimals.
        word: a word that may replace the number.
        empty: what an empty field means; "" where the profile supplies the number.
    """

    id: FieldId
    title: str
    minimum: int
    maximum: int
    default: str
    help: str
    optional: bool = False
    fraction: bool = False
    word: str = ""
    empty: str = ""


NO_LIMIT: Final = "no limit"
FORM_FIELDS: Final = (
    FormField("repeat", "tasks", 1, MAX_EPISODES, "1", "in order"),
    FormField("attempts", "attempts", 1, MAX_EPISODES, "1", "of each task"),
    FormField("task_index", "first task", 0, INTEGER_LIMIT - 1, "0", "counted from 0"),
    FormField("seed", "seed", 0, INTEGER_LIMIT - 1, "0", "of the agent"),
    FormField("concurrency", "concurrency", 1, 256, "", "episodes", optional=True),
    FormField("workers", "workers", 0, 256, "", "processes, or ray", optional=True, word="ray"),
    FormField("max_rounds", "rounds", 1, 100_000, "", "limit per episode", optional=True),
    FormField(
        "max_duration_sec",
        "seconds",
        0,
        1_000_000,
        "",
        "limit per episode",
        optional=True,
        fraction=True,
    ),
    FormField(
        "until_width",
        "until width",
        0,
        1,
        "",
        "95% interval: stop",
        optional=True,
        fraction=True,
        empty="all tasks",
    ),
    FormField(
        "cost",
        "cost",
        0,
        10**9,
        "",
        "budget of a batch",
        optional=True,
        fraction=True,
        empty=NO_LIMIT,
    ),
    FormField("tokens", "tokens", 1, 10**18, "", "budget of a batch", optional=True, empty=NO_LIMIT),
    FormField("errors_in_a_row", "errors", 1, 10**9, "", "in a row: stop", optional=True, empty=NO_LIMIT),
)
_BUDGET: Final[tuple[FieldId, ...]] = ("cost", "tokens", "errors_in_a_row")
_INTEGER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)


class Parsed(NamedTuple):
    """Result of parsing the form.

    Attributes:
        args: the start request; None if there are errors.
        errors: error of each invalid field by field id; the keys ``envs``, ``models`` and ``tasks``
            stand for the choice of environments, the text with several models, and the file with tasks.
    """

    args: StartArgs | None
    errors: Mapping[str, str]


def parse_form(
    texts: Mapping[FieldId, str],
    *,
    envs: Sequence[str],
    agent: str,
    model: str | None,
    batch_id: str,
    models: str = "",
    tasks: str = "",
) -> Parsed:
    """Parse the texts of the form, and check that at least one environment is chosen.

    Args:
        texts: typed text by field id; a missing text counts as empty.
        envs: names of the chosen environments.
        agent: name of the chosen agent.
        model: name of the chosen model; None for the default model of the profile.
        batch_id: id for the run.
        models: names of several models, with commas between, in place of ``model``; may be empty.
        tasks: path of a file with tasks, in place of the number of tasks and the first one; may be empty. The request
            has its tasks, never the path.
    """
    values: dict[str, int | float | str | None] = {}
    errors: dict[str, str] = {}
    for field in FORM_FIELDS:
        value, error = parse_number(field, texts.get(field.id, ""))
        values[field.id] = value
        if error is not None:
            errors[field.id] = error
    if not envs:
        errors["envs"] = "choose one"
    repeat, attempts = values["repeat"], values["attempts"]
    if isinstance(repeat, int) and isinstance(attempts, int) and repeat * attempts > MAX_EPISODES:
        errors["attempts"] = f"more than {MAX_EPISODES:,} episodes"
    if values["until_width"] is not None and (repeat == 1 or attempts != 1):
        errors.setdefault("until_width", "needs 2 tasks" if repeat == 1 else "needs 1 attempt")
    several = [name.strip() for name in models.split(",")] if models.strip() else []
    if "" in several or len(set(several)) < len(several):
        errors["models"] = "an empty or repeated name"
    found: dict[str, tuple[int, ...]] = {}
    try:
        found = _read_tasks(tasks, envs) if tasks.strip() else {}
    except ConfigError as exc:
        errors["tasks"] = sanitize_message(str(exc), 300)
    if errors:
        return Parsed(None, errors)
    limits = {name: values.pop(name) for name in _BUDGET}
    given: dict[str, object] = {
        "batch_id": batch_id,
        "envs": list(envs),
        "agent": agent,
        "model": None if several else model,
    }
    given |= {"tasks": found}
    given |= {"models": several, "budget": limits if any(limits.values()) else None}
    return Parsed(msgspec.convert(values | given, StartArgs), {})


def _read_tasks(path: str, envs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the tasks in a file for each of the environments.

    Raises:
        ConfigError: the file cannot be read, an id is unknown or of another environment, or one has no task.
    """
    from runner.formats.task_files import read_tasks

    found = read_tasks(Path(path.strip()).expanduser(), envs[0] if len(envs) == 1 else None)
    if sum(map(len, found.values())) > MAX_TASKS:
        raise ConfigError(f"the file has more than {MAX_TASKS:,} tasks; play them with agentgym-runner --tasks")
    names = {env.lower(): env for env in envs}
    if other := sorted(found.keys() - names.keys()):
        raise ConfigError(f"the file has tasks of {', '.join(other)}, which is not chosen")
    if missing := [names[name] for name in names.keys() - found.keys()]:
        raise ConfigError(f"the file has no task of {', '.join(missing)}")
    return {names[name]: tasks for name, tasks in found.items()}


def default_text(field: FormField, defaults: Mapping[str, float | str | None]) -> str:
    """Return the placeholder of a field: for an empty optional field, the value that the profile supplies.

    Args:
        field: the field.
        defaults: values of the node's profile by field id; a field without an entry has an unknown value.
    """
    if not field.optional or field.empty:
        return field.empty
    if field.id not in defaults:
        return "profile"
    return f"{_number_text(defaults[field.id]) or 'auto'} (profile)"


def parse_number(field: FormField, text: str) -> tuple[int | float | str | None, str | None]:
    """Return the number, or the field's word, and no error, or an error; an empty optional field has neither."""
    text = text.strip()
    if field.word and text == field.word:
        return text, None
    if not text and field.optional:
        return None, None
    if (_DECIMAL if field.fraction else _INTEGER).fullmatch(text) is None:
        return None, ("must be a number" if field.fraction else "must be a whole number")
    value = float(text) if field.fraction else int(text)
    if field.fraction and value == 0:
        return None, "more than 0"
    if not field.minimum <= value <= field.maximum:
        return None, (f"at least {field.minimum}" if value < field.minimum else f"at most {field.maximum:,}")
    return value, None


def form_texts(args: StartArgs | None) -> dict[FieldId, str]:
    """Return the text of each form field for the same start request; the default texts where ``args`` is None."""
    if args is None:
        return {field.id: field.default for field in FORM_FIELDS}
    limits = args.budget or Budget()
    return {field.id: _number_text(getattr(limits if field.id in _BUDGET else args, field.id)) for field in FORM_FIELDS}


def _number_text(value: float | str | None) -> str:
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

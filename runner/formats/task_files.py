"""Files with the tasks of a run: AgentEval's JSON, or one id per line, and what AgentGym's ids mean here."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from runner.envs.base import ALFWORLD_VARIABLE, alfworld_mappings, data_folder
from runner.errors import ConfigError, StoreError
from runner.formats.agentgym import item_of
from runner.util.display_text import one_line
from runner.util.files import read_regular

MAX_FILE_BYTES: Final = 64 << 20
"""Largest file of tasks in bytes; AgentTraj's items have their whole conversations."""
MAX_TASKS: Final = 20_000
"""Maximum number of tasks of one environment, so that a request on the bus has room for them."""
_RANGE: Final = re.compile(r"(?:(.+)_)?([0-9]{1,18})(?:(?:-|\.\.)([0-9]{1,18}))?", re.ASCII)
_TRIAL: Final = re.compile(r"(?:([^/]*)[/_])?(trial_T[0-9_]*[0-9])", re.ASCII)
_N_SHOWN: Final = 5


def read_tasks(path: Path, env: str | None = None) -> dict[str, tuple[int, ...]]:
    """Return the tasks in a file by environment, in lower case, each in the order of the file.

    A path that is no file, but a list of ids and ranges with commas between, stands for these. ``env`` is the
    environment of bare numbers, and the only one whose tasks are allowed; None: any. Raises ``ConfigError`` if the file
    cannot be read, an id is unknown, occurs twice or is of another environment, or there are too many.
    """
    if not path.exists() and (ids := str(path).split(",")) and all(map(_RANGE.fullmatch, ids)):
        return group_tasks(ids, env, "--tasks")
    try:
        items = list(_items(read_regular(path, MAX_FILE_BYTES, links=True)[0].decode("utf-8-sig")))
    except (StoreError, OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The tasks in {path} cannot be read: {exc}") from exc
    if not items:
        raise ConfigError(f"{path} has no tasks; give AgentEval's JSON, or one id or range per line")
    return group_tasks(items, env, str(path))


def group_tasks(items: Iterable[str], env: str | None, source: str) -> dict[str, tuple[int, ...]]:
    """Return the tasks of ids by environment; see ``read_tasks``.

    ``items`` are ids such as ``babyai_1804``, names of trials of ALFWorld, numbers, and ranges such as ``3-7``.
    """
    tasks: dict[str, list[int]] = {}
    unknown: list[str] = []
    trials: Mapping[str, int] | None = None
    for item in items:
        if (trial := _TRIAL.search(item)) is not None:
            trials = _trials() if trials is None else trials
            name, found = "alfworld", trials.get(f"{trial[1]}/{trial[2]}", trials.get(trial[2], -1))
            numbers = range(found, found + 1) if found >= 0 else range(0)
        elif (match := _RANGE.fullmatch(item)) is not None:
            name = item_of(f"{match[1]}_0")[0].lower() if match[1] else (env or "").lower()
            numbers = _span(match, source)
        else:
            name, numbers = "", range(0)
        if not name or not numbers or (env is not None and name != env.lower()):
            unknown.append(item)
        else:
            tasks.setdefault(name, []).extend(numbers)
    if unknown:
        raise ConfigError(_refusal(unknown, env, source))
    for name, chosen in tasks.items():
        _check(chosen, name, source)
    return {name: tuple(chosen) for name, chosen in tasks.items()}


def _items(text: str) -> Iterator[str]:
    """Raises ``ConfigError`` if an element of JSON has no id."""
    lines = [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]
    try:
        value = [json.loads(line) for line in lines] if text.startswith("{") else json.loads(text)
    except (ValueError, RecursionError):
        yield from lines
        return
    for number, element in enumerate(value if isinstance(value, list) else [value]):
        found = element.get("item_id") if isinstance(element, dict) else element
        if isinstance(found, bool) or not isinstance(found, str | int):
            raise ConfigError(f"element {number} has no item_id; see the format of AgentEval's files")
        yield str(found)


def _span(match: re.Match[str], source: str) -> range:
    first, last = int(match[2]), int(match[3] or match[2])
    if not 0 <= last - first < MAX_TASKS:
        raise ConfigError(f"{source}: the range {match[0]} has no tasks or more than {MAX_TASKS:,}")
    return range(first, last + 1)


def _check(numbers: list[int], env: str, source: str) -> None:
    if len(numbers) > MAX_TASKS:
        raise ConfigError(f"{source} has more than {MAX_TASKS:,} tasks of {env}; split it")
    if len(set(numbers)) < len(numbers):
        twice = Counter(numbers).most_common(1)[0][0]
        raise ConfigError(f"{source} has task {twice} of {env} twice; give each once, and --attempts K to repeat all")


def _refusal(unknown: list[str], env: str | None, source: str) -> str:
    shown = ", ".join(one_line(item, 80) for item in unknown[:_N_SHOWN])
    more = f" and {len(unknown) - _N_SHOWN:,} more" if len(unknown) > _N_SHOWN else ""
    what = f"are no tasks of {env}" if env else "name no task of an environment of this run"
    trials = (
        f"; names of ALFWorld's trials need its games, which {ALFWORLD_VARIABLE} names"
        if any("trial_T" in item for item in unknown)
        else ""
    )
    return f"{source}: {shown}{more} {what}{trials}; agentgym-runner tasks ENV lists what there is"


def _trials() -> Mapping[str, int]:
    """Keys are ``GAME/TRIAL`` and the trial alone; empty without the games."""
    from runner.envs.alfworld.tasks import RealTasks, catalogue

    found = catalogue(folder, alfworld_mappings(os.environ)) if (folder := data_folder("ALFWorld")) else None
    if not isinstance(found, RealTasks):
        return {}
    numbers: dict[str, int] = {}
    for number in range(found.n_tasks):
        name = found.name(number)
        numbers.setdefault(name, number)
        numbers.setdefault(name.rpartition("/")[2], number)
    return numbers

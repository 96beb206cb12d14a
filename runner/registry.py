"""Environments and agents by name, from the entry points of whatever is installed.

Listing reads names only; an object is imported when it is asked for, and one that fails does so by its own name.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from runner.errors import ConfigError, boundary

ENVS = "agentgym.envs"
AGENTS = "agentgym.agents"


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def names(group: str) -> list[str]:
    """The registered names of a group, in alphabetical order."""
    return sorted(_points(group), key=str.lower)


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest of the known names, or lists them all."""
    by_fold = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_fold, n=1, cutoff=0.5)
    if near:
        return f"Did you mean {by_fold[near[0]]}?"
    return f"Known are: {', '.join(by_fold.values()) or 'none'}."


def canonical(group: str, name: str) -> str:
    """The registered spelling of a name, in any case.

    Raises:
        ConfigError: with the nearest registered name.
    """
    folded = {known.lower(): known for known in names(group)}
    if name.lower() not in folded:
        kind = "environment" if group == ENVS else "agent"
        raise ConfigError(f"There is no {kind} named {name!r}. {suggestion(name, folded.values())}")
    return folded[name.lower()]


def target(group: str, name: str, **arguments: object) -> dict[str, Any]:
    """What builds the named object: its ``_target_`` and plain arguments.

    Raises:
        ConfigError: for an unknown name or an argument that starts with an underscore.
    """
    for key in arguments:
        if key.startswith("_"):
            raise ConfigError(f"{name} was given the argument {key!r}; names with a leading underscore are reserved")
    point = _points(group)[canonical(group, name)]
    return {"_target_": f"{point.module}.{point.attr}", **arguments}


def load(group: str, name: str) -> Any:  # noqa: ANN401 - whatever was registered
    """The registered object itself.

    Raises:
        ConfigError: naming the entry point that does not import, and why.
    """
    point = _points(group)[canonical(group, name)]
    found: list[Any] = []
    problem: list[BaseException] = []
    with boundary(problem.append):
        found.append(point.load())
    if problem:
        reason = f"{type(problem[0]).__name__}: {problem[0]}"
        raise ConfigError(f"{point.name} is registered as {point.value} but cannot be loaded: {reason}") from problem[0]
    return found[0]


def missing_packages(packages: Iterable[str]) -> list[str]:
    """Those of the given import or distribution names that are not installed."""
    return [package for package in packages if not _version(package) and not _importable(package)]


def versions(packages: Iterable[str]) -> Mapping[str, str]:
    """The installed version of each distribution that is installed."""
    return {package: found for package in packages if (found := _version(package))}


def _importable(package: str) -> bool:
    return package.isidentifier() and importlib.util.find_spec(package) is not None


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

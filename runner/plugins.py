"""Environments and agents by name, from the entry points of whatever is installed.

Listing reads names only; an object is imported when it is asked for, and one that fails does so by its own name.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from runner.errors import ConfigError, boundary
from runner.util.text import one_line

logger = logging.getLogger(__name__)

ENVS = "agentgym.envs"
AGENTS = "agentgym.agents"
ON_SERVER = "runner.envs.http.HttpEnvironment"
"""What plays an environment on a server."""
FAMILIES = {"gymnasium": "runner.envs.gymnasium:GymnasiumEnvironment"}
"""Environments named ``family:id``, by family: a class that takes the ``id``, and whose ``check`` refuses bad ones."""

_MEMBER = re.compile(r"(?P<family>[A-Za-z]+):(?P<id>[A-Za-z0-9_./-]{1,100})")


@cache
def _points(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points by name, more than one where several distributions use the same one.

    What is built in keeps its name: nobody else's object is played under it, in any case of its letters.
    """
    found: dict[str, list[EntryPoint]] = {}
    points = list(dict.fromkeys(entry_points(group=group)))
    built_in = {point.name.lower(): point for point in points if point.module.startswith("runner.")}
    for point in points:
        ours = built_in.get(point.name.lower(), point)
        if point.module != ours.module:
            logger.warning("%s is not used: that name belongs to %s", _origin(point), _origin(ours))
        elif point.value not in [known.value for known in found.get(point.name, [])]:
            found.setdefault(point.name, []).append(point)
    return found


def _origin(point: EntryPoint) -> str:
    return one_line(f"{point.name} of {point.dist.name if point.dist else 'an unknown package'} ({point.value})")


def names(group: str) -> list[str]:
    """The registered names of a group, in alphabetical order."""
    return sorted(_points(group), key=str.lower)


def _point(group: str, name: str) -> EntryPoint:
    if member := _member(group, name):
        return EntryPoint(name=name, value=FAMILIES[member[0]], group=group)
    return _points(group)[canonical(group, name)][0]


def _member(group: str, name: str) -> tuple[str, str] | None:
    """The family and the id of an environment that is named by them."""
    match = _MEMBER.fullmatch(name) if group == ENVS else None
    family = match["family"].lower() if match else ""
    return (family, match["id"]) if match and family in FAMILIES else None


def knows(group: str, name: str) -> bool:
    """Whether there is such an object, in any case of its name; of a family only its name is looked at."""
    return _member(group, name) is not None or name.lower() in map(str.lower, _points(group))


def is_built_in(group: str, name: str) -> bool:
    """Whether the object of that name, in any case, is of this package."""
    points = [point for known, found in _points(group).items() if known.lower() == name.lower() for point in found]
    return _member(group, name) is not None or any(point.module.startswith("runner.") for point in points)


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest of the known names, or lists them all."""
    by_fold = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_fold, n=1, cutoff=0.5)
    if near:
        return f"Did you mean {by_fold[near[0]]}?"
    return f"Known are: {', '.join(by_fold.values()) or 'none'}."


def canonical(group: str, name: str) -> str:
    """The registered spelling of a name, in any case; the exact one comes first.

    Raises:
        ConfigError: with the nearest registered name, or with all packages that register this one.
    """
    if member := _member(group, name):
        return ":".join(member)
    points, kind = _points(group), "environment" if group == ENVS else "agent"
    spellings = [name] if name in points else [known for known in points if known.lower() == name.lower()]
    if not spellings:
        raise ConfigError(f"There is no {kind} named {name!r}. {suggestion(name, names(group))}")
    meant = [point for known in spellings for point in points[known]]
    if len(meant) > 1:
        origins = " and ".join(map(_origin, meant))
        raise ConfigError(f"More than one {kind} is named {name!r}: {origins}. Uninstall all but one")
    return spellings[0]


def target(group: str, name: str, **arguments: object) -> dict[str, Any]:
    """What builds the named object: its ``_target_`` and plain arguments.

    Raises:
        ConfigError: for an unknown name or an argument that starts with an underscore.
    """
    for key in arguments:
        if key.startswith("_"):
            raise ConfigError(f"{name} was given the argument {key!r}; names with a leading underscore are reserved")
    point = _point(group, name)
    member = _member(group, name)
    return {"_target_": f"{point.module}.{point.attr}", **({"id": member[1]} if member else {}), **arguments}


def target_on_server(**arguments: object) -> dict[str, Any]:
    """What builds an environment that is played on a server, with the arguments of that class."""
    return {"_target_": ON_SERVER, **arguments}


def load(group: str, name: str) -> Any:  # noqa: ANN401 - whatever was registered
    """The registered object itself.

    Raises:
        ConfigError: naming the entry point that does not import, or the id that its family does not have, and why.
    """
    point = _point(group, name)
    found: list[Any] = []
    problem: list[BaseException] = []
    with boundary(problem.append):
        found.append(point.load())
    if problem:
        reason = f"{type(problem[0]).__name__}: {problem[0]}"
        raise ConfigError(f"{point.name} is registered as {point.value} but cannot be loaded: {reason}") from problem[0]
    if member := _member(group, name):
        found[0].check(member[1])
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

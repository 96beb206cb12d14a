"""Environments, agents and formats by name, in the entry points of all installed packages, and the packages' versions.

The name of an environment may also be its import path, ``module:Class``. Listing names imports none of them; ``load``
imports one object, and its error message names the entry point that failed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runner.errors import ConfigError, catch_foreign
from runner.util.display_text import one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # slow to import: not before the first paint

ENVS = "agentgym.envs"
AGENTS = "agentgym.agents"
FORMATS = "agentgym.formats"
_KINDS = {ENVS: "environment", AGENTS: "agent", FORMATS: "format"}
MODEL_ARGUMENTS = ("inference_mngr", "settings")
"""Keyword arguments of the constructor of an agent with ``uses_model``."""
_PASSED = {
    AGENTS: f"A run passes {' and '.join(MODEL_ARGUMENTS)} to the constructor of an agent with uses_model = True, and "
    "no argument to that of any other agent, so give other parameters a default; see docs/build/agents.md, An agent of "
    "your own",
    ENVS: "A run passes no argument to the constructor of an environment, except mode with --compat, so give other "
    "parameters a default; see CONTRIBUTING.md, Adding an environment or an agent",
}
HTTP_ENVIRONMENT = "runner.envs.http.environment.HttpEnvironment"
"""Import path of the class for environments that run on a server."""
FAMILIES = {
    "are": "runner.envs.are.environment:AREEnvironment",
    "gymnasium": "runner.envs.gymnasium:GymnasiumEnvironment",
}
"""Class per family of environments named ``family:id``; it takes the id, and its ``check`` rejects an invalid id."""
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*:[A-Za-z_]\w*", re.ASCII)
_FAMILY_NAME = re.compile(r"(?P<family>[A-Za-z]+):(?P<id>[A-Za-z0-9_./-]{1,100})")


class Plugin(msgspec.Struct, frozen=True):
    """An environment or agent by its entry point; it can be sent to another process, which imports it from there.

    ``value`` is the import path, ``module:attribute``, empty for an environment that is played only on a server; ``id``
    is the second part of a name ``family:id``.
    """

    name: str
    value: str = ""
    id: str | None = None

    @property
    def is_installed(self) -> bool:
        return bool(self.value)

    @property
    def is_built_in(self) -> bool:
        return self.value.startswith("runner.") and self.value != self.name

    @property
    def family(self) -> str | None:
        """In lower case; None for a name without a family."""
        return None if self.id is None else self.name.partition(":")[0]

    @property
    def uses_model(self) -> bool:
        """Of an agent; raises ``ConfigError`` if it cannot be loaded."""
        return bool(getattr(self.load(), "uses_model", False))

    def load(self) -> Any:  # noqa: ANN401 - any registered object
        """Import and return the registered object; one named by its import path also from the current folder.

        Raises ``ConfigError`` if the import fails, or the id of a name ``family:id`` is invalid.
        """
        loaded: list[Any] = []
        errors: list[BaseException] = []
        with catch_foreign(errors.append):
            if self.value == self.name and (folder := str(Path.cwd())) not in sys.path:
                sys.path.append(folder)
            loaded.append(self._point.load())
        if errors:
            reason = f"cannot be loaded: {type(errors[0]).__name__}: {errors[0]}"
            origin = "" if self.value == self.name else f" is registered as {self.value} but"
            raise ConfigError(f"{self.name}{origin} {reason}") from errors[0]
        if self.id is not None:
            loaded[0].check(self.id)
        return loaded[0]

    def config(self, **arguments: object) -> dict[str, Any]:
        for key in arguments:
            if key.startswith("_"):
                raise ConfigError(
                    f"invalid argument {key!r} of {self.name}; names with a leading underscore are reserved"
                )
        target = {"_target_": f"{self._point.module}.{self._point.attr}"}
        return {**target, **({} if self.id is None else {"id": self.id}), **arguments}

    @property
    def _point(self) -> EntryPoint:
        from importlib.metadata import EntryPoint

        return EntryPoint(self.name, self.value, group="")


@cache
def _entry_points() -> dict[str, dict[str, list[EntryPoint]]]:
    from importlib import metadata

    # Reading the folders of all packages takes milliseconds, so it is done once for all groups.
    found: list[EntryPoint] = []
    for distribution in metadata.distributions():
        with contextlib.suppress(UnicodeDecodeError):  # metadata.entry_points() would fail for one damaged package
            found += distribution.entry_points
    return {group: _by_name(point for point in found if point.group == group) for group in _KINDS}


def _by_name(found: Iterable[EntryPoint]) -> dict[str, list[EntryPoint]]:
    """Return a group's entry points by name; a name has several if several distributions register it.

    Names of built-in objects are reserved, ignoring case: other packages' entry points with these names are ignored.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    points = list(dict.fromkeys(found))
    built_in = {point.name.lower(): point for point in points if _is_own(point)}
    for point in points:
        owner = built_in.get(point.name.lower(), point)
        if _is_own(owner) and not _is_own(point):
            import logging  # imported late: this is rare, and ``--list-envs`` needs it for nothing else

            logging.getLogger(__name__).warning(
                "%s is ignored: the name is reserved for %s", _origin(point), _origin(owner)
            )
        elif point.value not in [known.value for known in by_name.get(point.name, [])]:
            by_name.setdefault(point.name, []).append(point)
    return by_name


def _is_own(point: EntryPoint) -> bool:
    return point.value.startswith("runner.")


def _origin(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "an unknown package"
    return one_line(f"{point.name} of {package} ({point.value})")


def built_in_modules() -> list[str]:
    groups = (_entry_points()[group].values() for group in (ENVS, AGENTS))
    return sorted({point.module for names in groups for points in names for point in points if _is_own(point)})


def registered_names(group: str) -> list[str]:
    return sorted(_entry_points()[group], key=str.lower)


def family_and_id(group: str, name: str) -> tuple[str, str] | None:
    """Return the lower-case family and the id of a name ``family:id``; None for any other name."""
    match = _FAMILY_NAME.fullmatch(name) if group == ENVS else None
    family = match["family"].lower() if match else ""
    return (family, match["id"]) if match and family in FAMILIES else None


def _is_import_path(group: str, name: str) -> bool:
    return group == ENVS and _IMPORT_PATH.fullmatch(name) is not None and family_and_id(group, name) is None


def is_registered(group: str, name: str) -> bool:
    """Return whether the name is registered, ignoring case, or an import path, which is not checked further.

    Of a name ``family:id`` only the family is checked.
    """
    if family_and_id(group, name) is not None or _is_import_path(group, name):
        return True
    return name.lower() in map(str.lower, _entry_points()[group])


def is_built_in(group: str, name: str) -> bool:
    """Return whether the name, ignoring case, belongs to an object of this package."""
    same = [points for known, points in _entry_points()[group].items() if known.lower() == name.lower()]
    is_own = any(_is_own(point) for points in same for point in points)
    return is_own or family_and_id(group, name) is not None


def closest_name(name: str, known: Iterable[str]) -> str | None:
    import difflib  # needed only for an error message

    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def find(group: str, name: str) -> Plugin:
    """Return a plugin by its name, ignoring case; an exact match takes precedence. Nothing is imported.

    Raises ``ConfigError`` if the name is unknown (the message suggests the closest), or several packages register it.
    """
    if member := family_and_id(group, name):
        return Plugin(":".join(member), FAMILIES[member[0]], member[1])
    if _is_import_path(group, name):
        return Plugin(name, name)
    points, kind = _entry_points()[group], _KINDS[group]
    spellings = [name] if name in points else [each for each in points if each.lower() == name.lower()]
    if not spellings:
        known = registered_names(group)
        closest = closest_name(name, known)
        hint = f"Did you mean {closest}?" if closest else f"Available: {', '.join(known) or 'none'}."
        raise ConfigError(f"There is no {kind} named {name!r}. {hint}")
    candidates = [point for spelling in spellings for point in points[spelling]]
    if len(candidates) > 1:
        origins = " and ".join(map(_origin, candidates))
        raise ConfigError(f"More than one {kind} is named {name!r}: {origins}. Uninstall all but one")
    return Plugin(spellings[0], candidates[0].value)


def check_constructor(group: str, name: str, factory: Callable[..., object], arguments: Iterable[str]) -> None:
    """The message of the ``ConfigError`` names the first parameter that is missing or unknown."""
    import inspect  # imported late: it takes 3 ms, and listing names needs it for nothing

    with contextlib.suppress(ValueError):  # a class in C without a signature
        signature = inspect.signature(factory)
        try:
            signature.bind(**dict.fromkeys(arguments))
        except TypeError as exc:
            called = f"{factory.__module__}.{getattr(factory, '__qualname__', name)}{signature}"
            misfit = f"The constructor of the {_KINDS[group]} {name} does not fit: {called}: {exc}"
            raise ConfigError(f"{misfit}. {_PASSED[group]}") from exc


def build_http_target(**arguments: object) -> dict[str, Any]:
    return {"_target_": HTTP_ENVIRONMENT, **arguments}


def load(group: str, name: str) -> Any:  # noqa: ANN401 - any registered object
    return find(group, name).load()


def installed_version(package: str) -> str | None:
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError, ValueError):  # the latter for an empty name
        return metadata.version(package)
    return None


def missing_packages(packages: Iterable[str]) -> list[str]:
    others = (name for name in packages if not (name.isidentifier() and importlib.util.find_spec(name) is not None))
    return [name for name in others if not installed_version(name)]


def installed_versions(packages: Iterable[str]) -> Mapping[str, str]:
    return {package: number for package in packages if (number := installed_version(package))}

"""Environments, agents and formats by name, in the entry points of all installed packages, and the packages' versions.

The name of an environment may also be its import path, ``module:Class``. Listing names imports nothing; ``load``
imports one object, and its error message names the entry point that failed. Packages are read from their folders;
``importlib.metadata``, whose import takes a tenth of the CPU of a short command, is the fallback for zip files and for
import hooks with packages of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, reduce
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from runner.errors import ConfigError, catch_foreign
from runner.util.display_text import one_line

_SUFFIXES = (".dist-info", ".egg-info")
_METADATA_FILES = ("METADATA", "PKG-INFO")
_SEPARATORS = re.compile("[-_.]+")


class EntryPoint(NamedTuple):
    """``value`` is its import path, ``package`` the name of the package that registers it."""

    name: str
    value: str
    package: str = ""

    @property
    def module(self) -> str:
        return self.value.partition("[")[0].partition(":")[0].strip()

    @property
    def attribute(self) -> str:
        """May contain dots; "" for the module itself."""
        return self.value.partition("[")[0].partition(":")[2].strip()


def entry_points(groups: Collection[str]) -> dict[str, list[EntryPoint]]:
    """Return the entry points of these groups; of packages with the same name the first one in ``sys.path`` counts."""
    found: dict[str, list[EntryPoint]] = {group: [] for group in groups}
    if not _has_only_folders():
        from importlib import metadata

        for group in groups:
            for point in metadata.entry_points(group=group):
                found[group].append(EntryPoint(point.name, point.value, point.dist.name if point.dist else ""))
        return found
    for package, folder in _package_folders():
        if registered := [point for point in _registered(folder) if point[0] in found]:
            owner = _metadata(folder, "name") or package
            for group, name, value in registered:
                found[group].append(EntryPoint(name, value, owner))
    return found


def installed_version(package: str) -> str | None:
    if not _has_only_folders():
        from importlib import metadata

        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None
    name = _normalized(package)
    folder = next((folder for known, folder in _package_folders() if _normalized(known) == name), None)
    return None if folder is None else _metadata(folder, "version")


def _has_only_folders() -> bool:
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        return False
    return not any(entry.endswith(".egg") or os.path.isfile(entry) for entry in _path())  # noqa: PTH113


def _path() -> Iterator[str]:
    """Imports ignore entries of any other type than text."""
    return (entry for entry in sys.path if isinstance(entry, str))


def _package_folders() -> Iterator[tuple[str, str]]:
    # Paths are text here: making a Path of each folder and file takes as long as reading them.
    seen: set[str] = set()
    for entry in _path():
        try:
            children = os.listdir(entry or ".")  # noqa: PTH208
        except OSError:
            continue
        for child in children:
            if child.lower().endswith(_SUFFIXES):
                package = child.rpartition(".")[0].partition("-")[0]
                if (name := _normalized(package)) not in seen:
                    seen.add(name)
                    yield package, f"{entry or '.'}/{child}"


def _normalized(package: str) -> str:
    return _SEPARATORS.sub("-", package).lower()


def _registered(folder: str) -> Iterator[tuple[str, str, str]]:
    group = ""
    for line in map(str.strip, (_read(f"{folder}/entry_points.txt") or "").splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield group, name.strip(), value.strip()


def _metadata(folder: str, field: str) -> str | None:
    for name in _METADATA_FILES:
        for line in (_read(f"{folder}/{name}") or "").partition("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            if key.lower() == field:
                return value.strip()
    return None


def _read(file: str) -> str | None:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            return opened.read().decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:
        return None


ENVS = "agentgym.envs"
AGENTS = "agentgym.agents"
FORMATS = "agentgym.formats"
_KINDS = {ENVS: "environment", AGENTS: "agent", FORMATS: "format"}
MODEL_ARGUMENTS = ("inference_mngr", "settings")
"""Keyword arguments of the constructor of an agent with ``uses_model``."""
_PASSED = {
    AGENTS: f"A run passes {' and '.join(MODEL_ARGUMENTS)} to the constructor of an agent with uses_model = True, and "
    "no argument to that of any other agent, so give other parameters a default; see docs/agents.md, An agent of your "
    "own",
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

    def load(self) -> Any:  # noqa: ANN401 - any registered object
        """Import and return the registered object; one named by its import path also from the current folder.

        Raises ``ConfigError`` if the import fails, or the id of a name ``family:id`` is invalid.
        """
        loaded: list[Any] = []
        errors: list[BaseException] = []
        with catch_foreign(errors.append):
            if self.value == self.name and (folder := str(Path.cwd())) not in sys.path:
                sys.path.append(folder)
            module = importlib.import_module(self._point.module)
            loaded.append(reduce(getattr, filter(None, self._point.attribute.split(".")), module))
        if errors:
            reason = f"cannot be loaded: {type(errors[0]).__name__}: {errors[0]}"
            origin = "" if self.value == self.name else f" is registered as {self.value} but"
            raise ConfigError(f"{self.name}{origin} {reason}") from errors[0]
        if self.id is not None:
            loaded[0].check(self.id)
        return loaded[0]

    def config(self, **arguments: object) -> dict[str, Any]:
        """Return the Hydra configuration of the object: its ``_target_`` and its arguments."""
        for key in arguments:
            if key.startswith("_"):
                raise ConfigError(
                    f"invalid argument {key!r} of {self.name}; names with a leading underscore are reserved"
                )
        target = {"_target_": f"{self._point.module}.{self._point.attribute}"}
        return {**target, **({} if self.id is None else {"id": self.id}), **arguments}

    @property
    def _point(self) -> EntryPoint:
        return EntryPoint(self.name, self.value)


@cache
def _entry_points() -> dict[str, dict[str, list[EntryPoint]]]:
    # Reading the folders of all packages takes milliseconds, so it is done once for all groups.
    return {group: _by_name(found) for group, found in entry_points(tuple(_KINDS)).items()}


def _by_name(found: Iterable[EntryPoint]) -> dict[str, list[EntryPoint]]:
    """Return a group's entry points by name; a name has several if several distributions register it.

    Names of built-in objects are reserved, ignoring case: other packages' entry points with these names are ignored.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    points = list(dict.fromkeys(found))
    built_in = {point.name.lower(): point for point in points if point.module.startswith("runner.")}
    for point in points:
        owner = built_in.get(point.name.lower(), point)
        if point.module != owner.module:
            import logging  # imported late: this is rare, and ``--list-envs`` needs it for nothing else

            logging.getLogger(__name__).warning(
                "%s is ignored: the name is reserved for %s", _origin(point), _origin(owner)
            )
        elif point.value not in [known.value for known in by_name.get(point.name, [])]:
            by_name.setdefault(point.name, []).append(point)
    return by_name


def built_in_modules() -> list[str]:
    groups = entry_points((ENVS, AGENTS)).values()
    return sorted({point.module for points in groups for point in points if point.module.startswith("runner.")})


def _origin(point: EntryPoint) -> str:
    return one_line(f"{point.name} of {point.package or 'an unknown package'} ({point.value})")


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
    is_own = any(point.module.startswith("runner.") for points in same for point in points)
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
    """Import and return the registered object; raises ``ConfigError`` like ``find`` and ``Plugin.load``."""
    return find(group, name).load()


def missing_packages(packages: Iterable[str]) -> list[str]:
    def is_importable(package: str) -> bool:
        return package.isidentifier() and importlib.util.find_spec(package) is not None

    return [package for package in packages if not is_importable(package) and not installed_version(package)]


def installed_versions(packages: Iterable[str]) -> Mapping[str, str]:
    return {package: number for package in packages if (number := installed_version(package))}

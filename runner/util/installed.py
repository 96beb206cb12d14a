"""Entry points and versions of the installed packages, read from their folders.

``importlib.metadata`` is the fallback for zip files and for import hooks with packages of their own: importing it takes
a tenth of the CPU of a short command.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import PathFinder
from typing import NamedTuple

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

"""Ids of ARE's scenarios, read from source files: neither ARE nor a scenario is imported.

ARE's interpreter may run this file as a script, so it imports only the standard library and runs on Python 3.10. An id
is found if it is a literal, as in ``@register_scenario("scenario_tutorial")``.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

DISTRIBUTION = "meta-agents-research-environments"
GROUP = "are.simulation.scenarios"
"""Group of the entry points by which packages add their own scenarios."""
MAX_FILES = 2_000
MAX_FILE_BYTES = 1 << 20
_REGISTER = {"register_scenario", "register"}
_NOT_SCENARIOS = {"utils", "tests"}


def scan() -> dict[str, Any]:
    """Return what this interpreter has, as JSON-encodable data.

    ``installed`` and ``version`` describe ARE; ``scenarios`` has the ids of its own scenarios, ``added`` those of other
    packages, and ``packages`` the number of entry points that add scenarios.
    """
    from importlib.metadata import entry_points  # imported late, because it is slow

    own_folders = [folder / "simulation" / "scenarios" for folder in _locations("are")]
    own = {id for folder in own_folders for id in _ids(_own_files(folder))}
    points = entry_points(group=GROUP)
    modules = sorted({point.value.partition(":")[0].partition(".")[0] for point in points} - {"are"})
    added = {id for module in modules for id in _ids(_module_files(module))} - own
    installed = any(folder.is_dir() for folder in own_folders)
    return {
        "installed": installed,
        "version": _version() if installed else None,
        "scenarios": sorted(own),
        "added": sorted(added) if installed else [],
        "packages": len(modules),
    }


def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def _locations(module: str) -> list[Path]:
    """Return the folders of a top-level package; finding a top-level module imports nothing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]


def _own_files(folder: Path) -> Iterator[Path]:
    for child in sorted(folder.iterdir()) if folder.is_dir() else ():
        if child.name not in _NOT_SCENARIOS:
            yield from sorted(child.rglob("*.py")) if child.is_dir() else [child]


def _module_files(module: str) -> Iterator[Path]:
    folders = _locations(module)
    for folder in folders:
        yield from sorted(folder.rglob("*.py"))
    if not folders:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin)


def _ids(files: Iterable[Path]) -> Iterator[str]:
    for file in islice((file for file in files if file.suffix == ".py"), MAX_FILES):
        try:
            source = file.read_bytes()
            if len(source) <= MAX_FILE_BYTES and b"register" in source:
                yield from _registered(ast.parse(source))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue


def _registered(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and _name(mark.func) in _REGISTER and mark.args:
                first = mark.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


if __name__ == "__main__":
    import json

    json.dump(scan(), sys.stdout)

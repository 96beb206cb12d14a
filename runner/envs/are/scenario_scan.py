"""Ids of ARE's scenarios, read from source files: neither ARE nor a scenario is imported.

ARE's interpreter may run this file as a script, so it imports only the standard library and runs on Python 3.10. An id
is found if it is a literal, as in ``@register_scenario("scenario_tutorial")``.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from itertools import islice
from pathlib import Path
from typing import Any

DISTRIBUTION = "meta-agents-research-environments"
GROUP = "are.simulation.scenarios"
"""Group of the entry points by which packages add their own scenarios."""
MAX_FILES = 2_000
MAX_FILE_BYTES = 1 << 20
_REGISTERED = re.compile(r"""^[ \t]*@(?:\w+\.)*register(?:_scenario)?\(\s*(["'])([^"'\\\n]+)\1\s*[,)]""", re.MULTILINE)
_NOT_SCENARIOS = {"utils", "tests"}


def scan() -> dict[str, Any]:
    """Return what this interpreter has, as the fields of a ``ScenarioCatalog``."""
    folders = [place / "simulation" / "scenarios" for place in _places("are")]
    if not any(folder.is_dir() for folder in folders):
        return {"installed": False}
    files = ((file.relative_to(folder), file) for folder in folders for file in folder.rglob("*.py"))
    own = set(_ids(file for path, file in files if path.parts[0] not in _NOT_SCENARIOS))
    modules = {point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=GROUP)} - {"are"}
    added = {id for module in modules for id in _ids(_files(module))} - own
    names = [f"are:{id}" for id in (*sorted(own), *sorted(added))]
    return {"installed": True, "version": installed_version(), "scenarios": names, "is_complete": not modules}


def installed_version() -> str | None:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def _places(module: str) -> list[Path]:
    """Return the folders or the file of a top-level module; finding it imports nothing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or [spec.origin or ""]]


def _files(module: str) -> Iterator[Path]:
    for place in _places(module):
        yield from place.rglob("*.py") if place.is_dir() else [place]


def _ids(files: Iterable[Path]) -> Iterator[str]:
    for file in islice(files, MAX_FILES):
        try:
            if file.stat().st_size <= MAX_FILE_BYTES:
                yield from (id for _, id in _REGISTERED.findall(file.read_text("utf-8", "replace")))
        except OSError:
            continue


if __name__ == "__main__":
    import json

    json.dump(scan(), sys.stdout)

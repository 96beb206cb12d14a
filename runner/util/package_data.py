"""Files shipped with the runner: profiles and task data, in a wheel or in a checkout."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def package_resource(*parts: str) -> Traversable:
    """Return a shipped file or folder, e.g. ``package_resource("data", "wordle", "words.txt")``.

    In a wheel the shipped files are inside the package; in a checkout they are beside the package.
    """
    package = files("runner")
    packaged = package.joinpath("shipped")
    if isinstance(package, Path) and not packaged.is_dir():
        return package.parent.joinpath(*parts)
    return packaged.joinpath(*parts)

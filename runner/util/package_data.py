"""Files shipped with the runner: profiles and task data, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def package_resource(*parts: str) -> Path:
    """Return a shipped file or folder, e.g. ``package_resource("data", "wordle", "words.txt")``.

    In a wheel the shipped files are inside the package; in a checkout they are beside the package.
    """
    packaged = _PACKAGE / "shipped"
    return (packaged if packaged.is_dir() else _PACKAGE.parent).joinpath(*parts)

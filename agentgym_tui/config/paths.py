"""Folders of the console's own files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER_NAME: Final = "agentgym-console"
MAX_BYTES: Final = 64 * 1024
"""Maximum size of the settings file, in bytes."""


def xdg_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the console's folder inside an XDG base directory.

    Args:
        environ: environment variables.
        variable: name of the variable with the base directory; its value is ignored unless it is an absolute path.
        default: base directory relative to the home directory, used without a valid variable.
    """
    base, home = Path(environ.get(variable, "")), Path(environ.get("HOME", ""))
    return (base if base.is_absolute() else (home if home.is_absolute() else Path("/")) / default) / FOLDER_NAME

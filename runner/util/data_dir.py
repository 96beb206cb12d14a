"""The default state directory, where episodes are stored if no folder is named, and folders of the user's own files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from runner.errors import ConfigError
from runner.util.display_text import one_line

FOLDER_NAME: Final = "agentgym-console"
_STATE_FILES: Final = ("node.lock", "index.sqlite", "outbox.sqlite")
_ULID_LENGTH: Final = 26
_PACKAGE = Path(__file__).parents[1]


class DataDir(NamedTuple):
    """A state directory; ``notice`` is what the user should know about the choice, "" if nothing."""

    path: Path
    notice: str = ""


def resolve_path(path: str, environ: Mapping[str, str], cwd: Path) -> Path:
    home = environ.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    return cwd.absolute() / path


def deleted_folder_problem(environ: Mapping[str, str]) -> str | None:
    try:
        Path.cwd()
    except FileNotFoundError:
        name = one_line(environ.get("PWD", ""), 500)
        return (
            f"the current folder{name and ' '}{name} has been deleted; change to another folder with cd and try again"
        )
    return None


def xdg_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the folder of this program inside an XDG base directory.

    The value of ``variable`` is ignored unless it is an absolute path; ``default`` is relative to the home directory.
    """
    base, home = Path(environ.get(variable, "")), Path(environ.get("HOME", ""))
    return (base if base.is_absolute() else (home if home.is_absolute() else Path("/")) / default) / FOLDER_NAME


def default_data_dir(environ: Mapping[str, str], cwd: Path) -> DataDir:
    """Return the state directory that applies if none is named.

    In a checkout of this repository it is the checkout's ``data``. Elsewhere it is the platform's folder for data of
    applications, unless ``./data`` already is a state directory.
    """
    local = cwd.absolute() / "data"
    if (checkout := _find_checkout(cwd.absolute())) is not None and (checkout / "data" == local or not _is_used(local)):
        return DataDir(checkout / "data")
    default = _platform_folder(environ, cwd)
    if not _is_used(local):
        return DataDir(default)
    return DataDir(
        local,
        f"the state directory is {local}, because it has been used before; "
        f"without it, it would be {default} (--data-dir or AGENTGYM_DATA_DIR names another one)",
    )


def require_named_folder(option: str | None, data_dir: Path) -> None:
    """Check the state directory of a command that only reads.

    Raises ``ConfigError`` if ``--data-dir`` names no folder. Without the option, a folder that does not exist yet has
    no episodes.
    """
    if option and not data_dir.is_dir():
        raise ConfigError(f"There is no folder {data_dir}; check --data-dir")
    if option and not (data_dir / "runs").is_dir() and _has_batches(data_dir):
        raise ConfigError(f"{data_dir} has batches or episodes, but no folder runs; name the folder above runs")


def unwritable_reason(data_dir: Path) -> str:
    """Return why files cannot be written into a folder, or why it cannot be created; "" if they probably can."""
    folder = data_dir
    while not _exists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def _find_checkout(cwd: Path) -> Path | None:
    marks = ("pyproject.toml", "runner/util/data_dir.py", "agentgym_tui/cli.py")
    return next((each for each in (cwd, *cwd.parents) if all(_exists(each / mark) for mark in marks)), None)


def _is_used(folder: Path) -> bool:
    """Return whether a folder holds the state of a node or the episodes of a run; other projects have ``data``, too."""
    if any(_exists(folder / name) for name in _STATE_FILES):
        return True
    return _has_batches(folder / "runs")


def _has_batches(folder: Path) -> bool:
    try:
        return any(len(entry.stem) == _ULID_LENGTH for entry in folder.iterdir())
    except OSError:
        return False


def _platform_folder(environ: Mapping[str, str], cwd: Path) -> Path:
    names_base = environ.get("XDG_DATA_HOME", "").startswith("/")
    if names_base or (sys.platform == "linux" and environ.get("HOME", "").startswith("/")):
        return xdg_folder(environ, "XDG_DATA_HOME", ".local/share")
    from platformdirs import user_data_path  # its import takes a tenth of the CPU of a short command

    return cwd.absolute() / user_data_path(FOLDER_NAME, appauthor=False)


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises in a folder that cannot be searched


def package_resource(*parts: str) -> Path:
    """Return a shipped file or folder, e.g. ``package_resource("data", "wordle", "words.txt")``.

    In a wheel the shipped files are inside the package; in a checkout they are beside the package.
    """
    packaged = _PACKAGE / "shipped"
    return (packaged if packaged.is_dir() else _PACKAGE.parent).joinpath(*parts)

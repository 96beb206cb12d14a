"""Files for other programs: episodes as JSON, and whatever else is written into a folder of the user's."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.services.toast import toast

if TYPE_CHECKING:
    from textual.app import App

MAX_COPIES: Final = 100
"""Files of one name in a folder."""


class ExportError(Exception):
    """A file that was not written, and why; hostile text."""


def export_episode(episode_id: str, data: bytes, folder: Path) -> Path:
    """Write an episode file for this user alone and return where it is; what is there already stays as it is.

    Args:
        episode_id: names the file.
        data: the JSON.
        folder: where to.

    Raises:
        ExportFailed: when the id cannot name a file, or the file cannot be written.
    """
    from runner.store import is_ulid

    if not is_ulid(episode_id):
        raise ExportError(f"the id of this episode, {episode_id[:40]!r}, cannot be the name of a file")
    return write_new_file(folder, episode_id, ".json", data)


def write_new_file(folder: Path, stem: str, suffix: str, data: bytes) -> Path:
    """Write a file for this user alone and return where it is; with a number where its name is taken.

    Raises:
        ExportFailed: when it cannot be written.
    """
    try:
        path, descriptor = _open_new_file(folder, stem, suffix)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
    except OSError as exc:
        raise ExportError(f"{folder} cannot be written to: {exc.strerror}; start the console in another") from exc
    return path


def _open_new_file(folder: Path, stem: str, suffix: str) -> tuple[Path, int]:
    for number in range(1, MAX_COPIES + 1):
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    raise ExportError(f"{folder} has {MAX_COPIES} files of this name already; move them away")


async def save_screenshot(app: App[Any]) -> None:
    """Write what is on the screen as SVG into the folder where the console was started, and say where."""
    svg = app.export_screenshot().encode("utf-8", "replace")
    name = f"agentgym-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    try:
        path = await asyncio.to_thread(write_new_file, Path.cwd(), name, ".svg", svg)
    except (ExportError, OSError) as exc:
        toast(app, sanitize_message(f"no picture: {exc}"), failed=True)
    else:
        toast(app, sanitize_message(f"picture written to {path}"))

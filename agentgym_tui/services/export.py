"""Write episodes as JSON and screenshots as SVG into a folder of the user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.services.toast import toast

if TYPE_CHECKING:
    from textual.app import App

MAX_COPIES: Final = 100
"""Maximum number of files in a folder whose names differ only in the appended number."""


_FONT_FACE = re.compile(r"\s*@font-face\s*\{[^{}]*\}")
_COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
_RICH_FONTS: Final = "font-family: Fira Code, monospace;"
_LOCAL_FONTS: Final = 'font-family: "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;'


class ExportError(Exception):
    """A file could not be written; the message may contain untrusted text."""

    published_error_type = "ExportFailed"


def export_episode(episode_id: str, data: bytes, folder: Path) -> Path:
    """Write an episode file with mode 0600 and return its path. An existing file is never overwritten.

    Args:
        episode_id: the file name without ``.json``.
        data: the episode as JSON.
        folder: the target folder.

    Raises:
        ExportError: the id is not a valid file name, or the file cannot be written.
    """
    from runner.util.clock import is_ulid

    if not is_ulid(episode_id):
        raise ExportError(f"the episode id {episode_id[:40]!r} is not a valid file name")
    return write_new_file(folder, episode_id, ".json", data)


def write_new_file(folder: Path, stem: str, suffix: str, data: bytes) -> Path:
    """Write a file with mode 0600 and return its path. If the file exists, a number is appended to ``stem``.

    Raises:
        ExportError: the file cannot be written, or ``MAX_COPIES`` files of this name exist.
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
        raise ExportError(f"{folder} is not writable: {exc.strerror}; start the console in another folder") from exc
    return path


def _open_new_file(folder: Path, stem: str, suffix: str) -> tuple[Path, int]:
    for number in range(1, MAX_COPIES + 1):
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    raise ExportError(f"{folder} already has {MAX_COPIES} files of this name; move them away")


def screenshot_svg(app: App[Any], title: str | None = None) -> str:
    """Return a screenshot as SVG that refers to nothing on the network: it uses the fonts of the reader's machine.

    Args:
        app: the console.
        title: text above the picture; None: the title of the console.
    """
    return remove_network_references(app.export_screenshot(title=title))


def remove_network_references(svg: str) -> str:
    """Remove the web fonts and the comment that Rich writes at the start of each SVG (``rich/_export_format.py``).

    The text of the screen is not changed; it may contain URLs, which no viewer follows.
    """
    head, end_of_style, rest = svg.partition("</style>")
    head = _COMMENT.sub("", _FONT_FACE.sub("", head)).replace(_RICH_FONTS, _LOCAL_FONTS)
    return head + end_of_style + rest


async def save_screenshot(app: App[Any]) -> None:
    """Write a screenshot as SVG into the current folder, and show the path or the error in a toast."""
    svg = screenshot_svg(app).encode("utf-8", "replace")
    name = f"agentgym-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    try:
        path = await asyncio.to_thread(write_new_file, Path.cwd(), name, ".svg", svg)
    except (ExportError, OSError) as exc:
        toast(app, sanitize_message(f"screenshot failed: {exc}"), failed=True)
    else:
        toast(app, sanitize_message(f"screenshot written to {path}"))

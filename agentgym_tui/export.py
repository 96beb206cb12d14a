"""Episodes written as JSON files for other programs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

MAX_COPIES: Final = 100
"""Files of one episode in a folder."""


class ExportFailed(Exception):
    """A file that was not written, and why; hostile text."""


def export(episode_id: str, data: bytes, folder: Path) -> Path:
    """Write an episode file for this user alone and return where it is; what is there already stays as it is.

    Args:
        episode_id: names the file.
        data: the JSON.
        folder: where to.

    Raises:
        ExportFailed: when the id cannot name a file, or the file cannot be written.
    """
    from runner.store import is_id

    if not is_id(episode_id):
        raise ExportFailed(f"the id of this episode, {episode_id[:40]!r}, cannot be the name of a file")
    try:
        path, descriptor = _new_file(folder, episode_id)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
    except OSError as exc:
        raise ExportFailed(f"{folder} cannot be written to: {exc.strerror}; start the console in another") from exc
    return path


def _new_file(folder: Path, stem: str) -> tuple[Path, int]:
    for number in range(1, MAX_COPIES + 1):
        path = folder / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    raise ExportFailed(f"{folder} has {MAX_COPIES} files of this episode already; move them away")

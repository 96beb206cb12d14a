"""Files of deleted episodes that can be restored until the process that deleted them ends.

They are moved to ``trash/<id of the process>/<number of the deletion>/`` in the state directory, below which they keep
their paths. The process holds the lock of its folder; a folder whose lock is free belongs to a process that was killed,
and is removed by the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from runner.errors import StoreError
from runner.util.clock import is_ulid, new_ulid
from runner.util.files import file_lock, make_folder, sync_folder

FOLDER: Final = "trash"
MAX_TRIES: Final = 5


class Trash:
    """The deleted files of this process; nothing is created before the first deletion."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = ExitStack()
        self._folder: Path | None = None
        self._n_deletions = 0

    def new_deletion(self) -> Path:
        """Create and return the folder of a deletion; raises a ``StoreError`` if that is not possible."""
        try:
            folder = self._own_folder() / str(self._n_deletions)
            make_folder(folder)
        except OSError as exc:
            raise StoreError(f"{exc.filename} cannot be created: {exc.strerror}; check its permissions") from exc
        self._n_deletions += 1
        return folder

    def _own_folder(self) -> Path:
        for _ in range(MAX_TRIES):
            if self._folder is not None and self._folder.is_dir():
                return self._folder
            folder = self._data_dir / FOLDER / new_ulid()
            make_folder(folder)
            if self._lock.enter_context(file_lock(folder, wait=False)):
                self._folder = folder
        # another process took a new folder for an abandoned one, several times
        raise StoreError(f"{self._data_dir / FOLDER} cannot be used; try again")

    def move(self, deletion: Path, paths: Sequence[Path]) -> int:
        """Move files of the state directory into the folder of a deletion; return their size in bytes.

        After a ``StoreError``, the files before the one that failed stay moved.
        """
        n_bytes = 0
        folders: set[Path] = set()
        for path in paths:
            target = deletion / path.relative_to(self._data_dir)
            try:
                if target.parent not in folders:
                    make_folder(target.parent)
                    folders |= {target.parent, path.parent}
                n_bytes += path.stat(follow_symlinks=False).st_size
                path.rename(target)
            except FileNotFoundError:  # another process has deleted it
                continue
            except OSError as exc:
                raise StoreError(f"{path} cannot be moved to {deletion}: {exc.strerror}; it was not deleted") from exc
        _sync(folders)
        return n_bytes

    def restore(self, deletion: Path) -> list[Path]:
        """Move the files of a deletion back; return those that stay, because there is another file in their place.

        After a ``StoreError``, another call moves the others.
        """
        left: list[Path] = []
        folders: set[Path] = set()
        for path in [Path(parent, name) for parent, _, names in os.walk(deletion) for name in sorted(names)]:
            target = self._data_dir / path.relative_to(deletion)
            try:
                make_folder(target.parent)
                if os.path.lexists(target):
                    left.append(target)
                else:
                    path.rename(target)
                    folders.add(target.parent)
            except OSError as exc:
                raise StoreError(f"{target} cannot be restored: {exc.strerror}; undo it again") from exc
        _sync(folders)
        return left

    def close(self) -> None:
        """Remove the files of all deletions."""
        if self._folder is not None:
            _remove(self._folder)
            self._folder = None
        self._lock.close()


def remove_abandoned_trash(data_dir: Path) -> int:
    """Remove the files that killed processes had deleted; return the number of these processes."""
    n_removed = 0
    with suppress(OSError):
        for folder in list((data_dir / FOLDER).iterdir()):
            if is_ulid(folder.name) and not folder.is_symlink():
                with file_lock(folder, wait=False) as is_abandoned:
                    if is_abandoned:
                        _remove(folder)
                        n_removed += 1
    return n_removed


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are in use
        folder.parent.rmdir()


def _sync(folders: set[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            sync_folder(folder)

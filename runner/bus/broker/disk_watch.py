"""Notices when a disk that was full has room again."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from runner.errors import boundary, log_failure

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks."""

FULL_BYTES = 1 << 20
"""With less room than this a disk counts as full."""

ROOM_BYTES = 4 << 20
"""With more room than this it does no longer."""


class DiskWatch(threading.Thread):
    """Calls ``on_room``, on a thread of its own, each time the disk of ``folder`` was full and is no longer."""

    def __init__(self, folder: Path, on_room: Callable[[], None]) -> None:
        """Nothing is watched before ``start``."""
        super().__init__(name="disk watch", daemon=True)
        self._folder = folder
        self._on_room = on_room
        self._closed = threading.Event()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self.join()

    def run(self) -> None:
        """Look now and then until closed."""
        was_full = False
        while not self._closed.wait(LOOK_S):
            with boundary(log_failure(logger, "looking after the disk")):
                found = os.statvfs(self._folder)
                free = found.f_bavail * found.f_frsize
                if was_full and free > ROOM_BYTES:
                    self._on_room()
                was_full = free < FULL_BYTES or (was_full and free <= ROOM_BYTES)

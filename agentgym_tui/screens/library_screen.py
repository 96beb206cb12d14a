"""Base of the screens that show the library: they read it again when episodes have ended."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Generic, TypeVar

from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.filtered_screen import FilteredScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.nodes import READING_FILES, BusLink
from runner.errors import StoreError

READ_WHILE_FILLING_S: Final = 0.1
READ_INTERVAL_S: Final = 1.0
"""Seconds between two reads of a complete library and of one that is still being filled; at least ten times the
duration of a read.
"""

LibraryT = TypeVar("LibraryT", bound=ResultLibrary)


class LibraryScreen(FilteredScreen, Generic[LibraryT]):
    """A screen that shows what it reads from the library, outside the event loop.

    Attributes:
        failure: why the library cannot be read; "" if it can.
    """

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self._n_read: int | None = None
        self._reading = self._has_read = False
        self._wake = asyncio.Event()
        self.failure: str = ""

    @property
    def library(self) -> LibraryT | None:
        """The library that the screen reads; None if the session has none."""
        raise NotImplementedError

    async def read(self, library: LibraryT) -> None:
        """Read the library in a thread and keep what was read; raises ``StoreError``."""
        raise NotImplementedError

    def show_read(self, *, first: bool) -> None:
        """Show what was read, or the failure."""
        raise NotImplementedError

    def read_changes(self) -> None:
        """Read the library in the background, unless no episode has ended since the last read."""
        if self.library is not None and self._n_read != self.session.store.n_ended and not self._reading:
            self._reading = True
            start_worker(self, self._read, group="read")

    def read_again(self) -> None:
        """Read the library at once, even if no episode has ended; a running read is followed by another one."""
        self._n_read = None
        self._wake.set()
        self.read_changes()

    @property
    def is_filling(self) -> bool:
        """Whether the library was not read yet, or is still being filled."""
        is_library, link = self.library is not None, self.session.store.link
        return is_library and (not self._has_read or link in (BusLink(), READING_FILES))

    async def _read(self) -> None:
        """Read the library; repeat as long as further episodes have ended since the previous read."""
        store = self.session.store
        try:
            while self._n_read != store.n_ended and self.is_current:
                self._n_read, started_s = store.n_ended, self._now()
                self._wake.clear()
                await self._read_once()
                await self._pause(10 * (self._now() - started_s))
        finally:
            self._reading = False

    async def _pause(self, least_s: float) -> None:
        """Wait before the next read; a library that was being filled is read as soon as it is complete."""
        if not self.is_filling:
            await self._wait(max(READ_INTERVAL_S, least_s))
        waited_s = 0.0
        while self.is_filling and waited_s < max(READ_WHILE_FILLING_S, least_s) and not self._wake.is_set():
            await self._wait(READ_WHILE_FILLING_S)
            waited_s += READ_WHILE_FILLING_S

    async def _wait(self, seconds: float) -> None:
        """Wait until the time has passed, or the user wants the library to be read again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _read_once(self) -> None:
        library = self.library
        if library is None:
            return
        try:
            await self.read(library)
        except StoreError as exc:
            self.failure = f"✗ {masked_line(exc)}"
        else:
            self.failure = ""
        is_first, self._has_read = not self._has_read, True
        if self.is_ready:
            self.show_read(first=is_first)

"""Pictures of the screens of one running console, compared with the stored ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot
from textual.widgets import Input

from tests.support.console.pilot import SIZE, SMALL, wait_for_text

LARGE: Final = (200, 50)
"""The size at which the status fits on one line and tables show all columns."""
SETTLE_LIMIT_S: Final = 3.0
"""How long a screen may differ from its picture, since background work and a new size take effect by and by."""
ALL_SIZES: Final = (SMALL, SIZE, LARGE)


@dataclass
class Pictures:
    """What a user of one console sees on the way; the pictures stored on the disk are those of the last update."""

    pilot: Pilot[None]
    stored: SnapshotAssertion

    async def show(self, *keys: str, texts: tuple[str, ...] = ()) -> None:
        """Press keys and wait for texts."""
        await self.pilot.press(*keys)
        await wait_for_text(self.pilot, *texts)
        for field in self.pilot.app.screen.query(Input):
            field.cursor_blink = False
        await self.pilot.pause()

    async def compare(
        self, name: str, *keys: str, texts: tuple[str, ...] = (), sizes: tuple[tuple[int, int], ...] = (SMALL,)
    ) -> None:
        """Press keys, wait for texts, and compare the screen with its picture at each size."""
        for number, (width, height) in enumerate(sizes):
            if self.pilot.app.size != (width, height):
                await self.pilot.resize_terminal(width, height)
            await self.show(*(() if number else keys), texts=texts)
            await self._compare(name if len(sizes) == 1 else f"{name} {width}x{height}")

    async def _compare(self, name: str) -> None:
        expected, deadline = self._expected(name), time.monotonic() + SETTLE_LIMIT_S
        while (picture := self._take()) != expected and time.monotonic() < deadline:
            await self.pilot.pause(0.02)
        assert picture == self.stored(name=name)

    def _take(self) -> str:
        return self.pilot.app.export_screenshot(title=self.pilot.app.title, simplify=True)

    def _expected(self, name: str) -> str | None:
        path = Path(self.stored.extension.get_location(test_location=self.stored.test_location, index=name))
        return path.read_text("utf-8") if path.exists() else None


PicturesOf = Callable[..., AbstractAsyncContextManager[Pictures]]

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pytest_textual_snapshot import SVGImageExtension
from syrupy.assertion import SnapshotAssertion

from agentgym_tui.app import Console
from tests.support.console.pilot import SMALL, wait_until
from tests.support.console.snapshots import Pictures, PicturesOf


@pytest.fixture
def pictures_of(snapshot: SnapshotAssertion, utc: None) -> PicturesOf:
    """Return a function that runs a console and compares its screens with stored pictures."""

    @asynccontextmanager
    async def run(app: Console, size: tuple[int, int] = SMALL) -> AsyncIterator[Pictures]:
        async with app.run_test(size=size, notifications=True) as pilot:
            await wait_until(pilot, lambda: app.focused is not None, "the panes")
            await pilot.pause()
            yield Pictures(pilot, snapshot.use_extension(SVGImageExtension))

    return run

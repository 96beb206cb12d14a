"""The console on log files, driven by a pilot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from textual.pilot import Pilot

from agentgym_tui.app import Console
from agentgym_tui.logs import LogFile
from agentgym_tui.screens.line_browser import LogScreen
from tests.support.console.fake_session import files_session
from tests.support.console.pilot import wait_for_widget_text, wait_until
from tests.support.console.samples import FakeClock

START: Final = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def log_line(number: int, kind: str = "token", **more: str) -> str:
    """Return a JSON line; line ``number`` is ``number`` seconds after ``START``."""
    fields = "".join(f', "{name}": "{value}"' for name, value in more.items())
    at = (START + timedelta(seconds=number)).isoformat()
    return f'{{"at": "{at}", "kind": "{kind}", "number": {number}{fields}}}\n'


def log_lines(n: int, start: int = 0) -> bytes:
    return "".join(log_line(number) for number in range(start, start + n)).encode()


def logs_app(*paths: Path) -> Console:
    session = files_session()
    session.logs = [LogFile(path) for path in paths]
    app = Console(session, now=FakeClock())
    app.animation_level = "none"
    return app


@asynccontextmanager
async def logs_pilot(*paths: Path, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Pilot[None]]:
    """Run the console and yield once all its widgets are mounted."""
    app = logs_app(*paths)
    async with app.run_test(size=size, notifications=True) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, LogScreen) and app.screen.is_ready)
        yield pilot
    for log in app.session.logs:
        log.close()


def log_screen(pilot: Pilot[None]) -> LogScreen:
    assert isinstance(pilot.app.screen, LogScreen)
    return pilot.app.screen


async def wait_until_read(pilot: Pilot[None], n: int) -> None:
    """Wait until ``n`` lines are read and the file has no more."""
    await wait_for_widget_text(pilot, "#summary", f"{n:,} line")
    await wait_until(pilot, lambda: log_screen(pilot).opened.log.is_complete)

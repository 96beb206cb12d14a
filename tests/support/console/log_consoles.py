"""The console on logs, driven by a pilot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from textual.pilot import Pilot

from agentgym_tui.app.console import LogsConsole
from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.screens.logs.screen import LogScreen
from tests.support.console.fake_session import files_session
from tests.support.console.piloted import until, until_shown
from tests.support.console.samples import FakeClock

START: Final = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def event(number: int, kind: str = "token", **more: str) -> str:
    """A line of JSON; one per second."""
    fields = "".join(f', "{name}": "{value}"' for name, value in more.items())
    at = (START + timedelta(seconds=number)).isoformat()
    return f'{{"at": "{at}", "kind": "{kind}", "number": {number}{fields}}}\n'


def events(n: int, start: int = 0) -> bytes:
    return "".join(event(number) for number in range(start, start + n)).encode()


def console_on(*paths: Path) -> LogsConsole:
    session = files_session()
    session.logs = [LogFile(path) for path in paths]
    app = LogsConsole(session, now=FakeClock())
    app.animation_level = "none"
    return app


@asynccontextmanager
async def log_console(*paths: Path, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Pilot[None]]:
    """The console once all its parts are there, and the first log was read to its end."""
    app = console_on(*paths)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: isinstance(app.screen, LogScreen) and app.screen.is_ready)
        yield pilot
    for log in app.session.logs:
        log.close()


def screen(pilot: Pilot[None]) -> LogScreen:
    assert isinstance(pilot.app.screen, LogScreen)
    return pilot.app.screen


async def until_read(pilot: Pilot[None], n: int) -> None:
    """Wait until so many lines were read, and nothing more is known of."""
    await until_shown(pilot, "#summary", f"{n:,} line")
    await until(pilot, lambda: screen(pilot).opened.log.is_complete)

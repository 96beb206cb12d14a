"""A console driven by a pilot: wait for what a thread brings, and read what is on the screen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from agentgym_tui.app.console import Console
from agentgym_tui.config.settings import Settings
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.line_renderer import LineRenderer
from tests.support.console import screens
from tests.support.console.fake_session import FakeSession
from tests.support.console.samples import FakeClock

SIZE, SMALL = (120, 40), (80, 24)


def app_of(session: FakeSession, settings: Settings | None = None, ui_state: UiState | None = None) -> Console:
    """The console at a time that stands still."""
    app = Console(session, settings, ui_state, now=FakeClock())
    app.animation_level = "none"
    return app


@asynccontextmanager
async def console(session: FakeSession, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Pilot[None]]:
    """The console after its first paint."""
    app = Console(session)
    app.animation_level = "none"
    async with app.run_test(size=size, notifications=True) as pilot:
        yield pilot


async def until(pilot: Pilot[None], seen: Callable[[], bool]) -> None:
    await screens.until(pilot, seen, "what was waited for")


async def until_shown(pilot: Pilot[None], selector: str, *texts: str) -> None:
    """Wait for texts in a widget that draws lines."""
    await screens.until(pilot, lambda: all(text in shown(pilot, selector) for text in texts), f"{texts} in {selector}")


def shown(pilot: Pilot[None], selector: str) -> str:
    """The text that a widget draws; "" while it is not there."""
    found = pilot.app.screen.query(selector)
    if not found or not isinstance(found.first(), LineRenderer) or not found.first().size:
        return ""
    view = found.first(LineRenderer)
    return "\n".join(view.render_line(y).text.rstrip() for y in range(view.size.height))


def toasts(pilot: Pilot[None]) -> str:
    """What was said in passing."""
    return "\n".join(str(toast.render()) for toast in pilot.app.screen.query("Toast"))


def keys_in(app: Console, selector: str) -> list[str]:
    """The keys of a list's rows in the order they are shown."""
    rows = app.screen.query_one(selector, LineList).source
    return [rows.key(index) for index in range(len(rows))]

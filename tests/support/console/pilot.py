"""Run a console under a Textual pilot, read its screen, and wait for what background work brings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from textual._context import visible_screen_stack
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.config import Settings, UiState
from agentgym_tui.widgets.lists import LineList, LineRenderer
from tests.support.console.fake_session import FakeSession
from tests.support.console.samples import FakeClock

SIZE, SMALL = (120, 40), (80, 24)
WAIT_TIMEOUT_S: Final = 8.0


def console_app(session: FakeSession, settings: Settings | None = None, ui_state: UiState | None = None) -> Console:
    """Return a console whose clock stands still."""
    app = Console(session, settings, ui_state, now=FakeClock())
    app.animation_level = "none"
    return app


def by_name(command: str) -> list[str]:
    """Return the keys that run a command by the palette, which also finds ids."""
    return ["ctrl+p", *command, "enter"]


@asynccontextmanager
async def console_pilot(session: FakeSession, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Pilot[None]]:
    """Run a console on the real clock and yield its pilot."""
    app = Console(session)
    app.animation_level = "none"
    async with app.run_test(size=size, notifications=True) as pilot:
        yield pilot


async def wait_for_widget_text(pilot: Pilot[None], selector: str, *texts: str) -> None:
    """Wait until a widget that draws lines shows all texts."""
    await wait_until(
        pilot, lambda: all(text in widget_text(pilot, selector) for text in texts), f"{texts} in {selector}"
    )


def widget_text(pilot: Pilot[None], selector: str) -> str:
    """Return the text that a widget draws; "" until it is mounted."""
    widgets = pilot.app.screen.query(selector)
    if not widgets or not isinstance(widgets.first(), LineRenderer) or not widgets.first().size:
        return ""
    view = widgets.first(LineRenderer)
    return "\n".join(view.render_line(y).text.rstrip() for y in range(view.size.height))


async def type_text(pilot: Pilot[None], text: str, *keys: str) -> None:
    """Type a text, then press keys."""
    await pilot.press(*("space" if letter == " " else letter for letter in text), *keys)


async def filter_by(pilot: Pilot[None], query: str) -> None:
    """Filter the list by a query that is pasted, which is a single redraw."""
    await pilot.press("slash")
    pilot.app.screen.query_one("#filter", Input).insert_text_at_cursor(query)
    await pilot.press("enter")


def toast_text(pilot: Pilot[None]) -> str:
    return "\n".join(str(toast.render()) for toast in pilot.app.screen.query("Toast"))


def row_keys(app: Console, selector: str) -> list[str]:
    """Return the keys of a list's rows in their order on the screen."""
    rows = app.screen.query_one(selector, LineList).source
    return [rows.key(index) for index in range(len(rows))]


def screen_text(app: App[Any]) -> str:
    """Return the rows of the terminal, toasts included."""
    # without the screens below, a dialog would be drawn on an empty screen, and its cache would keep it
    visible_screen_stack.set(app._background_screens)
    rows = app.screen._compositor.render_strips()  # Textual has no public access to the drawn strips
    return "\n".join("".join(segment.text for segment in row) for row in rows)


async def wait_for_text(pilot: Pilot[Any], *texts: str) -> None:
    """Wait until all texts are on the screen."""

    def are_shown() -> bool:
        screen = screen_text(pilot.app)
        return all(text in screen for text in texts)

    await wait_until(pilot, are_shown, " and ".join(texts))


async def wait_for_no_text(pilot: Pilot[Any], text: str) -> None:
    """Wait until a text is no longer on the screen."""
    await wait_until(pilot, lambda: text not in screen_text(pilot.app), f"the end of {text}")


async def wait_until(pilot: Pilot[Any], condition: Callable[[], bool], description: str = "the condition") -> None:
    """Wait until a condition holds; it is checked whenever all messages are handled."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {description}\n{screen_text(pilot.app)}"
        await pilot.pause(0.02)

"""What a screen shows, as text, and how to wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from textual.app import App
from textual.pilot import Pilot

WAIT_S: Final = 8.0


def screen_text(app: App[Any]) -> str:
    """The rows of the terminal; passing messages included."""
    width, height = app.size
    return "\n".join("".join(segment.text for segment in row) for row in _rows(app, width, height))


def _rows(app: App[Any], width: int, height: int) -> list[Any]:
    return list(app.screen._compositor.render_strips())  # what is drawn has no public name


async def shown(pilot: Pilot[Any], *texts: str) -> None:
    """Wait until all of the texts are on the screen."""

    def seen() -> bool:
        screen = screen_text(pilot.app)
        return all(text in screen for text in texts)

    await until(pilot, seen, " and ".join(texts))


async def gone(pilot: Pilot[Any], text: str) -> None:
    """Wait until a text is not on the screen any more."""
    await until(pilot, lambda: text not in screen_text(pilot.app), f"not {text}")


async def until(pilot: Pilot[Any], holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds; it is looked at whenever all messages were handled."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}\n{screen_text(pilot.app)}"
        await pilot.pause(0.02)

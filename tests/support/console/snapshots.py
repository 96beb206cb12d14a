"""What the snapshot tests share: types, terminal sizes and cursors that do not blink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

SnapCompare = Callable[..., bool]
RunBefore = Callable[[Pilot[None]], Awaitable[None]]


def _size_id(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=_size_id)

ALL_SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=_size_id)
"""With the one at which the status fits on one line and tables show all columns."""

TABLE_SIZES = pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=_size_id)

LOOKS = pytest.mark.parametrize(
    ("size", "theme"),
    [((80, 24), "textual-dark"), ((120, 40), "textual-light"), ((200, 50), "textual-dark")],
    ids=["80x24", "120x40-light", "200x50"],
)
"""All sizes, one of them in the light theme."""


def stop_cursor_blink(pilot: Pilot[None]) -> None:
    for field in pilot.app.screen.query(Input):
        field.cursor_blink = False

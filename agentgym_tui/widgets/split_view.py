"""Two parts side by side, with a border that can be moved."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.containers import Container
from textual.message import Message


class Sides(Container):
    """Its second child has a border at its left; dragging that says where it should be."""

    ALLOW_SELECT: ClassVar[bool] = False
    BLANK = True  # all of it is covered, and the framework draws also what is behind

    class Dragged(Message):
        """What the first one should take, in per cent."""

        def __init__(self, share: int) -> None:
            super().__init__()
            self.share = share

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Take hold of the border."""
        first, second = (self.children[0], self.children[1]) if len(self.children) > 1 else (self, self)
        beside = second.display and second.region.x > first.region.x
        if beside and event.screen_x == second.region.x:
            self.capture_mouse()
            event.stop()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Say where it is wanted."""
        if self.app.mouse_captured is self:
            share = round(100 * (event.screen_x - self.region.x) / max(self.region.width, 1))
            self.post_message(self.Dragged(max(1, min(share, 99))))

    def on_mouse_up(self) -> None:
        """Let go."""
        if self.app.mouse_captured is self:
            self.release_mouse()

"""Panes that take the room a person gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.containers import Container
from textual.message import Message
from textual.widget import Widget

from agentgym_tui.config.ui_state import UiState
from agentgym_tui.widgets.pane_layouts import RESIZE_STEPS, Axis, PaneLayout, sizes_of

if TYPE_CHECKING:
    from textual.dom import DOMNode


class SplitView(Container):
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


class PaneSizes:
    """The panes of a screen.

    Args:
        root: what holds them all.
        kept: the shares as they were left; changed along with them.
        arrangements: what can be set, in each arrangement of the screen.
    """

    def __init__(self, root: DOMNode, kept: UiState, *layouts: PaneLayout) -> None:
        self._root, self._kept = root, kept
        self._sizes = list(dict.fromkeys(share for layout in layouts for share in sizes_of(layout)))

    def apply(self, layout: PaneLayout | None, default_sizes: Mapping[str, int] | None = None) -> None:
        """Give each part its share, or where none was set what the styles say.

        Args:
            levers: of the arrangement there is; None where a pane is shown alone.
            usual: rows or columns of parts that have a size of their own where none was set.
        """
        here = sizes_of(layout or {})
        sizes = {share.widget_id: (share, self._kept.sizes.get(share.key)) for share in here}
        for widget_id, axis in dict.fromkeys((share.widget_id, share.axis) for share in self._sizes):
            share, size = sizes.get(widget_id, (None, None))
            for widget in self._root.query(f"#{widget_id}"):
                if share is not None and size is not None and share.axis == axis:
                    _set(widget, axis, f"{share.clamp(size)}%")
                else:
                    _set(widget, axis, (default_sizes or {}).get(widget_id))

    def resize(self, layout: PaneLayout, pane: str | None, direction: str) -> bool:
        """Make a pane larger or smaller, or all as at first; False where it cannot be. It has to be applied then."""
        if direction not in RESIZE_STEPS:
            for share in self._sizes:
                self._kept.sizes.pop(share.key, None)
            return True
        axis, by = RESIZE_STEPS[direction]
        rule = layout.get((pane or "", axis))
        parts = [widget_id for widget_id in self._root.query(f"#{rule.share.widget_id}") if widget_id.size] if rule is not None else []
        if rule is None or not parts:
            return False
        before = self._kept.sizes.get(rule.share.key) or _current_percent(parts[0], axis)
        self._kept.sizes[rule.share.key] = rule.share.clamp(before + rule.sign * by)
        return True

    def drag(self, layout: PaneLayout, to: int) -> None:
        """Put the border between two sides to a share, where there is one. It has to be applied then."""
        for share in sizes_of(layout):
            if share.axis == "width":
                self._kept.sizes[share.key] = share.clamp(to)


def _set(widget: Widget, axis: Axis, size: str | int | None) -> None:
    if size is None and not widget.styles.inline.has_rule(axis):
        return  # else the framework would arrange all anew
    if axis == "width":
        widget.styles.width = size
    else:
        widget.styles.height = size


def _current_percent(widget_id: Widget, axis: Axis) -> int:
    """What it takes now, in per cent."""
    whole, own = widget_id.parent.size if isinstance(widget_id.parent, Widget) else widget_id.size, widget_id.outer_size
    return round(100 * (own.width / max(whole.width, 1) if axis == "width" else own.height / max(whole.height, 1)))

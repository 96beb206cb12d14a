"""Resizable panes: a split view with a border that can be dragged, and the pane sizes that the user has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.containers import Container
from textual.message import Message
from textual.widget import Widget

from agentgym_tui.config.ui_state import UiState
from agentgym_tui.widgets.resize_rules import RESIZE_STEPS, Axis, PaneLayout, sizes_of

if TYPE_CHECKING:
    from textual.dom import DOMNode


class SplitView(Container):
    """A container with two children; the user can drag the border between them."""

    ALLOW_SELECT: ClassVar[bool] = False
    BLANK = True  # fully covered by children; Textual need not draw the background

    class Dragged(Message):
        """The border was dragged; ``percent`` is the requested width of the first child in percent of the container."""

        def __init__(self, percent: int) -> None:
            super().__init__()
            self.percent = percent

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start dragging the border."""
        first, second = (self.children[0], self.children[1]) if len(self.children) > 1 else (self, self)
        is_beside = second.display and second.region.x > first.region.x
        if is_beside and event.screen_x == second.region.x:
            self.capture_mouse()
            event.stop()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Post ``Dragged`` with the requested width while the border is dragged."""
        if self.app.mouse_captured is self:
            percent = round(100 * (event.screen_x - self.region.x) / max(self.region.width, 1))
            self.post_message(self.Dragged(max(1, min(percent, 99))))

    def on_mouse_up(self) -> None:
        """Stop dragging."""
        if self.app.mouse_captured is self:
            self.release_mouse()


class PaneSizes:
    """Applies and changes the pane sizes of a screen.

    Args:
        root: ancestor of all panes.
        ui_state: saved pane sizes; updated in place.
        layouts: one layout per arrangement of the screen (wide, narrow, …).
    """

    def __init__(self, root: DOMNode, ui_state: UiState, *layouts: PaneLayout) -> None:
        self._root, self._ui_state = root, ui_state
        self._sizes = list(dict.fromkeys(size for layout in layouts for size in sizes_of(layout)))

    def apply(self, layout: PaneLayout | None, default_sizes: Mapping[str, int] | None = None) -> None:
        """Set the size of each pane; a pane without a saved size keeps the size that the style sheet gives it.

        Args:
            layout: the layout of the current arrangement; None removes all set sizes, as for a single zoomed pane.
            default_sizes: default size of some widgets, in rows or columns, by widget id.
        """
        saved = {size.widget_id: (size, self._ui_state.sizes.get(size.key)) for size in sizes_of(layout or {})}
        for widget_id, axis in dict.fromkeys((size.widget_id, size.axis) for size in self._sizes):
            size, percent = saved.get(widget_id, (None, None))
            for widget in self._root.query(f"#{widget_id}"):
                if size is not None and percent is not None and size.axis == axis:
                    _set(widget, axis, f"{size.clamp(percent)}%")
                else:
                    _set(widget, axis, (default_sizes or {}).get(widget_id))

    def resize(self, layout: PaneLayout, pane: str | None, direction: str) -> bool:
        """Change the saved size of a pane, or reset the sizes of all panes; the caller has to call ``apply`` next.

        Args:
            layout: the layout of the current arrangement.
            pane: id of the focused pane.
            direction: a key of ``RESIZE_STEPS``, or ``reset``.

        Returns:
            False if the pane cannot be resized in that direction.
        """
        if direction not in RESIZE_STEPS:
            for size in self._sizes:
                self._ui_state.sizes.pop(size.key, None)
            return True
        axis, by = RESIZE_STEPS[direction]
        rule = layout.get((pane or "", axis))
        if rule is None:
            return False
        size = rule.size
        visible = [widget for widget in self._root.query(f"#{size.widget_id}") if widget.size]
        if not visible:
            return False
        percent = self._ui_state.sizes.get(size.key) or _current_percent(visible[0], axis)
        self._ui_state.sizes[size.key] = size.clamp(percent + rule.sign * by)
        return True

    def drag(self, layout: PaneLayout, percent: int) -> None:
        """Save ``percent`` as the width of the split view's first child; the caller has to call ``apply`` next."""
        for size in sizes_of(layout):
            if size.axis == "width":
                self._ui_state.sizes[size.key] = size.clamp(percent)


def _set(widget: Widget, axis: Axis, size: str | int | None) -> None:
    if size is None and not widget.styles.inline.has_rule(axis):
        return  # setting it would trigger a layout
    if axis == "width":
        widget.styles.width = size
    else:
        widget.styles.height = size


def _current_percent(widget: Widget, axis: Axis) -> int:
    container, size = widget.parent.size if isinstance(widget.parent, Widget) else widget.size, widget.outer_size
    if axis == "width":
        return round(100 * (size.width / max(container.width, 1)))
    return round(100 * (size.height / max(container.height, 1)))

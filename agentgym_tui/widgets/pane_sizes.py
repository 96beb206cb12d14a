"""Panes that take the room a person gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.widget import Widget

from agentgym_tui.config.ui_state import Kept
from agentgym_tui.widgets.pane_layouts import WAYS, Axis, Levers, shares

if TYPE_CHECKING:
    from textual.dom import DOMNode


class Panes:
    """The panes of a screen.

    Args:
        root: what holds them all.
        kept: the shares as they were left; changed along with them.
        arrangements: what can be set, in each arrangement of the screen.
    """

    def __init__(self, root: DOMNode, kept: Kept, *arrangements: Levers) -> None:
        self._root, self._kept = root, kept
        self._shares = list(dict.fromkeys(share for levers in arrangements for share in shares(levers)))

    def apply(self, levers: Levers | None, usual: Mapping[str, int] | None = None) -> None:
        """Give each part its share, or where none was set what the styles say.

        Args:
            levers: of the arrangement there is; None where a pane is shown alone.
            usual: rows or columns of parts that have a size of their own where none was set.
        """
        here = shares(levers or {})
        sizes = {share.part: (share, self._kept.sizes.get(share.key)) for share in here}
        for part, axis in dict.fromkeys((share.part, share.axis) for share in self._shares):
            share, size = sizes.get(part, (None, None))
            for widget in self._root.query(f"#{part}"):
                if share is not None and size is not None and share.axis == axis:
                    _set(widget, axis, f"{share.bounded(size)}%")
                else:
                    _set(widget, axis, (usual or {}).get(part))

    def resize(self, levers: Levers, pane: str | None, how: str) -> bool:
        """Make a pane larger or smaller, or all as at first; False where it cannot be. It has to be applied then."""
        if how not in WAYS:
            for share in self._shares:
                self._kept.sizes.pop(share.key, None)
            return True
        axis, by = WAYS[how]
        lever = levers.get((pane or "", axis))
        parts = [part for part in self._root.query(f"#{lever.share.part}") if part.size] if lever is not None else []
        if lever is None or not parts:
            return False
        before = self._kept.sizes.get(lever.share.key) or _share(parts[0], axis)
        self._kept.sizes[lever.share.key] = lever.share.bounded(before + lever.sign * by)
        return True

    def drag(self, levers: Levers, to: int) -> None:
        """Put the border between two sides to a share, where there is one. It has to be applied then."""
        for share in shares(levers):
            if share.axis == "width":
                self._kept.sizes[share.key] = share.bounded(to)


def _set(widget: Widget, axis: Axis, size: str | int | None) -> None:
    if size is None and not widget.styles.inline.has_rule(axis):
        return  # else the framework would arrange all anew
    if axis == "width":
        widget.styles.width = size
    else:
        widget.styles.height = size


def _share(part: Widget, axis: Axis) -> int:
    """What it takes now, in per cent."""
    whole, own = part.parent.size if isinstance(part.parent, Widget) else part.size, part.outer_size
    return round(100 * (own.width / max(whole.width, 1) if axis == "width" else own.height / max(whole.height, 1)))

"""A container whose parts the user resizes by keys or by dragging a border, or shows alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

from textual import events
from textual.screen import Screen
from textual.widget import Widget

Axis: TypeAlias = Literal["width", "height"]

STEP_PERCENT: Final = 5
"""Percent that one key press changes."""

RESIZE_STEPS: Final[Mapping[str, tuple[Axis, int]]] = {
    "narrower": ("width", -STEP_PERCENT),
    "wider": ("width", STEP_PERCENT),
    "lower": ("height", -STEP_PERCENT),
    "higher": ("height", STEP_PERCENT),
}


class Share(NamedTuple):
    """The adjustable size of one part of a split, in percent of the split; the parts without a share take the rest."""

    part: str
    """Id of the part."""
    key: str
    """Key in the saved UI state."""
    axis: Axis
    minimum: int
    maximum: int
    screen_class: str = ""
    """Style class of the screen without which the share does not apply; "" if it always applies."""

    def clamp(self, percent: int) -> int:
        """Return ``percent`` clamped to the allowed range."""
        return max(self.minimum, min(percent, self.maximum))


class Split(Widget):
    """A container with adjustable parts; the style sheet sets the direction and the sizes that the user has not set.

    Args:
        shares: the shares of all parts of the screen; the shares of other splits' parts are ignored.
        sizes: saved percents by key; updated in place.

    Attributes:
        fixed: whether no part is adjustable at present; saved sizes are then not applied.
        default_sizes: rows or columns of adjustable parts without a saved size, by part, instead of the style sheet's.
    """

    DEFAULT_CSS = """
    Split { width: 1fr; height: 1fr; overflow: hidden hidden; }
    """
    ALLOW_SELECT: ClassVar[bool] = False

    def __init__(
        self,
        shares: Sequence[Share],
        sizes: dict[str, int],
        *parts: Widget,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(*parts, id=id, classes=classes)
        self._shares, self._sizes = shares, sizes
        self.fixed = False
        self.default_sizes: Mapping[str, int] = {}

    def fit(self) -> None:
        """Set the size of each part, after the screen, the sizes or ``fixed`` changed."""
        current = {(share.part, share.axis): share for share in self._current_shares()}
        for part in self.children:
            for axis in dict.fromkeys(share.axis for share in self._shares if share.part == part.id):
                share = current.get((part.id or "", axis))
                percent = self._sizes.get(share.key) if share is not None else None
                if share is not None and percent is not None:
                    _set_size(part, axis, f"{share.clamp(percent)}%")
                else:
                    _set_size(part, axis, None if self.has_class("-zoomed") else self.default_sizes.get(part.id or ""))

    def border_of(self, part: Widget, axis: Axis, *, before: bool) -> tuple[Share, int] | None:
        """Return the share that moves a border of ``part``, and -1 if the part grows while the share shrinks.

        Args:
            part: a part of this split.
            axis: the direction in which the part is to be resized.
            before: whether to move the border before the part instead of the border after it.
        """
        shares = {share.part: share for share in self._current_shares() if share.axis == axis}
        if not before and part.id in shares:
            return shares[part.id], 1
        at = self.children.index(part)
        others = self.children[:at] if before else self.children[at + 1 :]
        return next(((shares[other.id], -1) for other in others if other.id in shares and other.size), None)

    def grow(self, share: Share, percent: int) -> None:
        """Add ``percent`` to a share."""
        part = next(part for part in self.children if part.id == share.part)
        size = self._sizes.get(share.key) or round(
            100 * getattr(part.outer_size, share.axis) / max(getattr(self.size, share.axis), 1)
        )
        self._sizes[share.key] = share.clamp(size + percent)
        self.fit()

    def reset(self) -> None:
        """Forget the saved sizes of all parts."""
        parts = {part.id for part in self.children}
        for share in self._shares:
            if share.part in parts:
                self._sizes.pop(share.key, None)
        self.fit()

    def on_mount(self) -> None:
        """Fit the parts before the first drawing."""
        self.fit()

    def on_resize(self) -> None:
        """Fit the parts to the new size of the screen."""
        self.fit()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start dragging the border between two parts that are side by side."""
        first, second = (self.children[0], self.children[1]) if len(self.children) > 1 else (self, self)
        is_beside = second.display and second.region.x > first.region.x
        if is_beside and event.screen_x == second.region.x:
            self.capture_mouse()
            event.stop()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the border with the pointer."""
        if self.app.mouse_captured is self:
            percent = round(100 * (event.screen_x - self.region.x) / max(self.region.width, 1))
            for share in self._current_shares():
                if share.axis == "width":
                    self._sizes[share.key] = share.clamp(percent)
            self.fit()

    def on_mouse_up(self) -> None:
        """Stop dragging."""
        if self.app.mouse_captured is self:
            self.release_mouse()

    def _current_shares(self) -> list[Share]:
        if self.fixed or self.has_class("-zoomed"):
            return []
        parts = {part.id for part in self.children}
        return [
            share
            for share in self._shares
            if share.part in parts and (not share.screen_class or self.screen.has_class(share.screen_class))
        ]


def resize_focused(screen: Screen[object], direction: str) -> bool:
    """Resize the focused pane of a screen.

    A pane without a share of its own moves the border after it, else the border of an outer split, else the border
    before it.

    Args:
        screen: the screen.
        direction: a key of ``RESIZE_STEPS``, or ``reset`` for all panes.

    Returns:
        False if the pane cannot be resized in that direction.
    """
    splits = screen.query(Split)
    if direction not in RESIZE_STEPS:
        for split in splits:
            split.reset()
        return bool(splits)
    axis, percent = RESIZE_STEPS[direction]
    around = [*_splits_around(screen.focused)]
    for before in (False, True):
        for split, part in around:
            if (border := split.border_of(part, axis, before=before)) is not None:
                share, sign = border
                split.grow(share, sign * percent)
                return True
    return False


def zoom_focused(screen: Screen[object]) -> None:
    """Show the focused pane of a screen alone, or all panes again."""
    if not unzoom(screen):
        for split, part in _splits_around(screen.focused):
            split.add_class("-zoomed")
            part.add_class("-alone")
            split.fit()


def unzoom(screen: Screen[object]) -> bool:
    """Show all panes again; return whether one was shown alone."""
    zoomed = [*screen.query(Split).filter(".-zoomed")]
    for split in zoomed:
        split.remove_class("-zoomed")
        for part in split.children:
            part.remove_class("-alone")
        split.fit()
    return bool(zoomed)


def _splits_around(pane: Widget | None) -> Iterator[tuple[Split, Widget]]:
    """Yield the splits that contain a widget, the innermost first, each with its part that contains the widget."""
    while pane is not None and isinstance(parent := pane.parent, Widget):
        if isinstance(parent, Split):
            yield parent, pane
        pane = parent


def _set_size(widget: Widget, axis: Axis, size: str | int | None) -> None:
    if size is None and not widget.styles.inline.has_rule(axis):
        return  # setting it would trigger a layout
    setattr(widget.styles, axis, size)

"""A container whose parts the user resizes by keys or by dragging a border, or shows alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

from textual import events
from textual.screen import Screen
from textual.widget import Widget

Axis: TypeAlias = Literal["width", "height"]

STEP_PERCENT: Final = 5

RESIZE_STEPS: Final[Mapping[str, tuple[Axis, int]]] = {
    "narrower": ("width", -STEP_PERCENT),
    "wider": ("width", STEP_PERCENT),
    "lower": ("height", -STEP_PERCENT),
    "higher": ("height", STEP_PERCENT),
}


class Share(NamedTuple):
    """The adjustable percentage of a part of a split; ``key`` is its name in the saved UI state."""

    part: str
    key: str
    axis: Axis
    minimum: int
    maximum: int
    screen_class: str = ""
    """Style class of the screen without which the share does not apply; "" if it always applies."""


class Split(Widget):
    """A container with adjustable parts; the style sheet sets the direction and the sizes that the user has not set.

    ``shares`` has those of all parts of the screen; ``sizes``, the saved percents by key, is updated in place.
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
        self.fixed = False  # while True, saved sizes are not applied
        self.default_sizes: Mapping[str, int] = {}  # rows or columns by part, instead of the style sheet's

    def on_mount(self) -> None:
        self.fit()

    def on_resize(self) -> None:
        self.fit()

    def fit(self) -> None:
        """Set the size of each part, after the screen, the sizes or ``fixed`` changed."""
        parts = {part.id: part for part in self.children}
        own = [share for share in self._shares if share.part in parts]
        sizes: dict[tuple[str, Axis], str | int | None] = {
            (share.part, share.axis): None if self.has_class("-zoomed") else self.default_sizes.get(share.part)
            for share in own
        }
        for share in self._current_shares():
            if (percent := self._sizes.get(share.key)) is not None:
                sizes[share.part, share.axis] = f"{_clamped(share, percent)}%"
        for (part, axis), size in sizes.items():
            if size is not None or parts[part].styles.inline.has_rule(axis):  # else setting it would trigger a layout
                setattr(parts[part].styles, axis, size)

    def resize(self, part: Widget, axis: Axis, percent: int, *, before: bool) -> bool | None:
        """Return whether the size changed; None without a border to move."""
        shares = {share.part: share for share in self._current_shares() if share.axis == axis}
        if not before and part.id in shares:
            return self._grow(shares[part.id], percent)
        at = self.children.index(part)
        others = self.children[:at] if before else self.children[at + 1 :]
        share = next((shares[other.id] for other in others if other.id in shares and other.size), None)
        return None if share is None else self._grow(share, -percent)

    def _grow(self, share: Share, percent: int) -> bool:
        part = next(part for part in self.children if part.id == share.part)
        whole = max(getattr(self.size, share.axis), 1)
        size = self._sizes.get(share.key) or round(100 * getattr(part.outer_size, share.axis) / whole)
        self._sizes[share.key] = _clamped(share, size + percent)
        self.fit()
        return self._sizes[share.key] != size

    def reset(self) -> None:
        parts = {part.id for part in self.children}
        for share in self._shares:
            if share.part in parts:
                self._sizes.pop(share.key, None)
        self.fit()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if len(self.children) > 1:
            first, second = self.children[:2]
            is_beside = second.display and second.region.x > first.region.x
            if is_beside and event.screen_x == second.region.x:
                self.capture_mouse()
                event.stop()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            percent = round(100 * (event.screen_x - self.region.x) / max(self.region.width, 1))
            for share in self._current_shares():
                if share.axis == "width":
                    self._sizes[share.key] = _clamped(share, percent)
            self.fit()

    def on_mouse_up(self) -> None:
        if self.app.mouse_captured is self:
            self.release_mouse()

    def _current_shares(self) -> list[Share]:
        if self.fixed or self.has_class("-zoomed"):
            return []
        parts = {part.id for part in self.children}
        own = (share for share in self._shares if share.part in parts)
        return [share for share in own if not share.screen_class or self.screen.has_class(share.screen_class)]


def _clamped(share: Share, percent: int) -> int:
    return max(share.minimum, min(percent, share.maximum))


def resize_focused(screen: Screen[object], direction: str) -> bool:
    """Resize the focused pane, or ``reset`` all panes; return False if it cannot be resized in that direction.

    A pane without a share of its own moves the border after it, else that of an outer split, else that before it.
    """
    if direction not in RESIZE_STEPS:
        splits = screen.query(Split)
        for split in splits:
            split.reset()
        return bool(splits)
    axis, percent = RESIZE_STEPS[direction]
    around = [*_splits_around(screen.focused)]
    moves = (split.resize(part, axis, percent, before=before) for before in (False, True) for split, part in around)
    return next((has_changed for has_changed in moves if has_changed is not None), False)


def zoom_focused(screen: Screen[object]) -> None:
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

"""Pane layouts: for each arrangement of a screen, the size that a resize key changes while a pane has the focus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

Axis: TypeAlias = Literal["width", "height"]

STEP_PERCENT: Final = 5
"""Percent that one key press changes."""

RESIZE_STEPS: Final[Mapping[str, tuple[Axis, int]]] = {
    "narrower": ("width", -STEP_PERCENT),
    "wider": ("width", STEP_PERCENT),
    "lower": ("height", -STEP_PERCENT),
    "higher": ("height", STEP_PERCENT),
}


class PaneSize(NamedTuple):
    """The adjustable width or height of a widget, in percent of its container; the neighbor takes the rest."""

    key: str
    """Key in the saved UI state."""
    widget_id: str
    """Id of the widget."""
    axis: Axis
    minimum: int
    maximum: int

    def clamp(self, percent: int) -> int:
        """Return ``percent`` clamped to the allowed range."""
        return max(self.minimum, min(percent, self.maximum))


class ResizeRule(NamedTuple):
    """The size to change when a pane is resized; ``sign`` is -1 if the pane grows while that size shrinks."""

    size: PaneSize
    sign: int = 1


PaneLayout: TypeAlias = Mapping[tuple[str, Axis], ResizeRule]
"""Resize rules by focused pane and axis."""

_SIDE: Final = PaneSize("live.wide.left", "left", "width", 20, 80)
_ENVIRONMENTS: Final = PaneSize("live.wide.environments", "environments-pane", "height", 10, 45)
_TRACE: Final = PaneSize("live.wide.trace", "trace-pane", "height", 10, 45)
_REWARDS: Final = PaneSize("live.wide.rewards", "rewards-pane", "height", 10, 80)
_ABOVE: Final = PaneSize("live.narrow.left", "left", "height", 40, 80)
_FEW_ENVIRONMENTS: Final = PaneSize("live.narrow.environments", "environments-pane", "height", 15, 60)

LIVE_WIDE: Final[PaneLayout] = {
    **{(pane, "width"): ResizeRule(_SIDE) for pane in ("environments", "steps", "trace")},
    **{(pane, "width"): ResizeRule(_SIDE, -1) for pane in ("transcript", "rewards")},
    ("environments", "height"): ResizeRule(_ENVIRONMENTS),
    ("steps", "height"): ResizeRule(_TRACE, -1),
    ("trace", "height"): ResizeRule(_TRACE),
    ("transcript", "height"): ResizeRule(_REWARDS, -1),
    ("rewards", "height"): ResizeRule(_REWARDS),
}
LIVE_NARROW: Final[PaneLayout] = {
    ("environments", "height"): ResizeRule(_FEW_ENVIRONMENTS),
    ("steps", "height"): ResizeRule(_ABOVE),
    ("transcript", "height"): ResizeRule(_ABOVE, -1),
    ("rewards", "height"): ResizeRule(_ABOVE, -1),
}
LIVE_NARROW_TRACE: Final[PaneLayout] = {
    ("environments", "height"): ResizeRule(_FEW_ENVIRONMENTS),
    ("steps", "height"): ResizeRule(_FEW_ENVIRONMENTS, -1),
    ("trace", "height"): ResizeRule(_FEW_ENVIRONMENTS, -1),
}
"""The trace replaces the panes below it."""

_STEPS: Final = PaneSize("episode.wide.steps", "steps", "width", 15, 80)
_FEW_STEPS: Final = PaneSize("episode.narrow.steps", "steps", "height", 15, 80)
_VIEWS: Final = ("transcript", "trace", "json")

EPISODE_WIDE: Final[PaneLayout] = {
    ("steps", "width"): ResizeRule(_STEPS),
    **{(view, "width"): ResizeRule(_STEPS, -1) for view in _VIEWS},
}
EPISODE_NARROW: Final[PaneLayout] = {
    ("steps", "height"): ResizeRule(_FEW_STEPS),
    **{(view, "height"): ResizeRule(_FEW_STEPS, -1) for view in _VIEWS},
}

_TREE: Final = PaneSize("events.wide.tree", "subjects", "width", 15, 60)
_SMALL_TREE: Final = PaneSize("events.narrow.tree", "subjects", "width", 20, 60)
_MESSAGES: Final = PaneSize("events.wide.messages", "messages", "height", 20, 80)
_FEW_MESSAGES: Final = PaneSize("events.narrow.messages", "messages", "height", 25, 75)


def _events(tree: PaneSize, messages: PaneSize) -> PaneLayout:
    return {
        ("subjects", "width"): ResizeRule(tree),
        **{(widget_id, "width"): ResizeRule(tree, -1) for widget_id in ("messages", "payload")},
        ("messages", "height"): ResizeRule(messages),
        ("payload", "height"): ResizeRule(messages, -1),
    }


EVENTS_WIDE: Final[PaneLayout] = _events(_TREE, _MESSAGES)
EVENTS_NARROW: Final[PaneLayout] = _events(_SMALL_TREE, _FEW_MESSAGES)

_LINES: Final = PaneSize("log.lines", "lines", "height", 20, 80)
LOG: Final[PaneLayout] = {("lines", "height"): ResizeRule(_LINES), ("payload", "height"): ResizeRule(_LINES, -1)}


def sizes_of(layout: PaneLayout) -> list[PaneSize]:
    """Return the sizes that the rules of a layout change, without duplicates."""
    return list(dict.fromkeys(rule.size for rule in layout.values()))

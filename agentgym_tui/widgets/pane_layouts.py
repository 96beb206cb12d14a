"""How much room panes take: what a key changes, for whichever pane has the focus, in each arrangement of a screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

Axis: TypeAlias = Literal["width", "height"]
Resizing: TypeAlias = Literal["narrower", "wider", "lower", "higher", "reset"]

STEP: Final = 5
"""Per cent that one key press changes."""

WAYS: Final[Mapping[str, tuple[Axis, int]]] = {
    "narrower": ("width", -STEP),
    "wider": ("width", STEP),
    "lower": ("height", -STEP),
    "higher": ("height", STEP),
}


class Share(NamedTuple):
    """A part whose share of its container can be set, in per cent; what is beside it takes the rest."""

    key: str
    """Under which it is kept."""
    part: str
    """The id of the widget."""
    axis: Axis
    least: int
    most: int

    def bounded(self, share: int) -> int:
        """The nearest share it may have."""
        return max(self.least, min(share, self.most))


class Lever(NamedTuple):
    """What changes when a pane is to grow: a share, upwards or, where the pane has the rest, downwards."""

    share: Share
    sign: int = 1


Levers: TypeAlias = Mapping[tuple[str, Axis], Lever]
"""By the pane that has the focus."""

_SIDE: Final = Share("live.wide.left", "left", "width", 20, 80)
_ENVIRONMENTS: Final = Share("live.wide.environments", "environments-pane", "height", 10, 45)
_TRACE: Final = Share("live.wide.trace", "trace-pane", "height", 10, 45)
_REWARDS: Final = Share("live.wide.rewards", "rewards-pane", "height", 10, 80)
_ABOVE: Final = Share("live.narrow.left", "left", "height", 40, 80)
_FEW_ENVIRONMENTS: Final = Share("live.narrow.environments", "environments-pane", "height", 15, 60)

LIVE_WIDE: Final[Levers] = {
    **{(pane, "width"): Lever(_SIDE) for pane in ("environments", "steps", "trace")},
    **{(pane, "width"): Lever(_SIDE, -1) for pane in ("transcript", "rewards")},
    ("environments", "height"): Lever(_ENVIRONMENTS),
    ("steps", "height"): Lever(_TRACE, -1),
    ("trace", "height"): Lever(_TRACE),
    ("transcript", "height"): Lever(_REWARDS, -1),
    ("rewards", "height"): Lever(_REWARDS),
}
LIVE_NARROW: Final[Levers] = {
    ("environments", "height"): Lever(_FEW_ENVIRONMENTS),
    ("steps", "height"): Lever(_ABOVE),
    ("transcript", "height"): Lever(_ABOVE, -1),
    ("rewards", "height"): Lever(_ABOVE, -1),
}
LIVE_NARROW_TRACE: Final[Levers] = {
    ("environments", "height"): Lever(_FEW_ENVIRONMENTS),
    ("steps", "height"): Lever(_FEW_ENVIRONMENTS, -1),
    ("trace", "height"): Lever(_FEW_ENVIRONMENTS, -1),
}
"""The trace takes the place of what is below."""

_STEPS: Final = Share("episode.wide.steps", "steps", "width", 15, 80)
_FEW_STEPS: Final = Share("episode.narrow.steps", "steps", "height", 15, 80)
_VIEWS: Final = ("transcript", "trace", "json")

EPISODE_WIDE: Final[Levers] = {
    ("steps", "width"): Lever(_STEPS),
    **{(view, "width"): Lever(_STEPS, -1) for view in _VIEWS},
}
EPISODE_NARROW: Final[Levers] = {
    ("steps", "height"): Lever(_FEW_STEPS),
    **{(view, "height"): Lever(_FEW_STEPS, -1) for view in _VIEWS},
}

_TREE: Final = Share("events.wide.tree", "subjects", "width", 15, 60)
_SMALL_TREE: Final = Share("events.narrow.tree", "subjects", "width", 20, 60)
_MESSAGES: Final = Share("events.wide.messages", "messages", "height", 20, 80)
_FEW_MESSAGES: Final = Share("events.narrow.messages", "messages", "height", 25, 75)


def _events(tree: Share, messages: Share) -> Levers:
    return {
        ("subjects", "width"): Lever(tree),
        **{(part, "width"): Lever(tree, -1) for part in ("messages", "payload")},
        ("messages", "height"): Lever(messages),
        ("payload", "height"): Lever(messages, -1),
    }


EVENTS_WIDE: Final[Levers] = _events(_TREE, _MESSAGES)
EVENTS_NARROW: Final[Levers] = _events(_SMALL_TREE, _FEW_MESSAGES)

_LINES: Final = Share("log.lines", "lines", "height", 20, 80)
LOG: Final[Levers] = {("lines", "height"): Lever(_LINES), ("payload", "height"): Lever(_LINES, -1)}


def shares(levers: Levers) -> list[Share]:
    """What can be set in an arrangement."""
    return list(dict.fromkeys(lever.share for lever in levers.values()))

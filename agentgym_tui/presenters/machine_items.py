"""What the machine screen lists: sections of items, each with its state, its trend and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.presenters.cells import Cell, Tone
from agentgym_tui.presenters.reward_plot import column_chart
from agentgym_tui.safe_text import masked_line

if TYPE_CHECKING:
    from agentgym_tui.state.run_store import RunStore

MAX_CAUSE: Final = 600
"""Number of characters shown of the cause of a problem."""

_N_SUSTAINED: Final = 3
"""Number of newest values that must all be high before a load counts as a problem."""


class Problem(NamedTuple):
    """Something that is wrong, and what to do.

    Attributes:
        text: what is wrong, as a sentence without its full stop.
        step: the next step.
        tone: ``bad`` where something fails, ``warn`` where it is slow or at a limit, ``dim`` for a note that is not
            counted as a problem, such as an environment that is not installed.
        is_on_live: whether the first lines of Live already show it in other words.
    """

    text: str
    step: str
    tone: Tone = "warn"
    is_on_live: bool = False

    @property
    def sign(self) -> str:
        """The sign that carries the meaning of the tone without colors."""
        return {"bad": "✗", "dim": "i"}.get(self.tone, "!")


class Item(NamedTuple):
    """A line of the machine screen.

    Attributes:
        key: identifies the item on the screen; untrusted text.
        name: its name.
        now: its present state.
        trend: recent values, the newest last; None where a value was not known.
        full: the value that fills the height of the trend; None for the largest of ``trend``.
        problems: what is wrong with it.
        env: the environment that the item is about; "" for others. Untrusted text.
    """

    key: str
    name: str
    now: Cell
    trend: Sequence[float | None] = ()
    full: float | None = None
    problems: Sequence[Problem] = ()
    env: str = ""


class Section(NamedTuple):
    """Items under a heading, and the reason why there are none, in words."""

    key: str
    title: str
    items: Sequence[Item]
    empty: str = ""


class MachineView(NamedTuple):
    """What the sections are made of.

    Attributes:
        store: the state of the console.
        key: returns the label of a command's key, by command id.
        read_only: why this console cannot send commands, "" if it can.
        problems_only: whether items may be left out that never have a problem.
    """

    store: RunStore
    key: Callable[[str], str]
    read_only: str = ""
    problems_only: bool = False

    def press(self, command: str, effect: str) -> str:
        """Return the hint to press the key of a command; ``effect`` is trusted text."""
        return f"press {self.key(command)} {effect}"


def sparkline(values: Sequence[float | None], width: int, full: float | None = None) -> str:
    """Return the newest values as columns with the newest at the right; a blank where a value was not known.

    Args:
        values: the values, the newest last.
        width: the number of columns.
        full: the value of a column of full height; None for the largest value.
    """
    known = [max(value, 0.0) for value in values[-width:] if value is not None and math.isfinite(value)]
    if width < 1 or not known:
        return ""
    high = max(full or 0.0, *known) or 1.0
    columns = iter(column_chart(known, len(known), 1, 0.0, high)[0])
    shown = [" " if value is None or not math.isfinite(value) else next(columns) for value in values[-width:]]
    return "".join(shown)


def is_sustained(values: Sequence[float | None], now: float | None, limit: float) -> bool:
    """Return whether a value is at or above a limit, now and in the known values before it."""
    if now is None or now < limit:
        return False
    return all(value >= limit for value in values[-_N_SUSTAINED:] if value is not None)


def problem_from_cause(
    what: str,
    cause: str | None,
    step: str,
    *,
    hint: str | None = None,
    tone: Tone = "bad",
    is_on_live: bool = False,
) -> Problem:
    """Return a problem whose ``cause``, and perhaps next step (``hint``), a node reported; both are untrusted text."""
    reason = masked_line(cause, MAX_CAUSE) if cause else ""
    text = f"{what}: {reason}" if reason else what
    return Problem(text, masked_line(hint, MAX_CAUSE) if hint else step, tone, is_on_live)

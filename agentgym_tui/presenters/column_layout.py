"""Where the columns of a table are: those that have no room are left out by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from agentgym_tui.presenters.cells import Column, Tone
from agentgym_tui.presenters.text_width import fit

BETWEEN: Final = "  "


class Place(NamedTuple):
    """A column that has room: which, how wide, and whether its texts stand at the right."""

    number: int
    width: int
    right: bool


Places: TypeAlias = Sequence[Place]


def arrange(columns: Sequence[Column], width: int) -> list[Place]:
    """The columns that have room in ``width``; those of the highest rank go first."""
    kept = list(enumerate(columns))
    while len(kept) > 1 and _needed(column for _, column in kept) > width:
        last = max(kept, key=lambda item: (item[1].rank, item[0]))
        if not last[1].rank:
            break
        kept.remove(last)
    free = width - _needed(column for _, column in kept)
    return [
        Place(n, max(column.least + free, 1) if column.width is None else column.width, column.right)
        for n, column in kept
    ]


def fitted(
    texts: Sequence[tuple[str, Tone]], columns: Sequence[Column], places: Places, width: int
) -> Iterator[tuple[str, Tone]]:
    """A text for each place; of fewer texts than there are columns the last one takes the rest of the line."""
    last = len(texts) - 1 if 0 < len(texts) < len(columns) else -1
    between, room = "", width
    for number, size, right in places:
        text, tone = texts[number] if number < len(texts) else ("", "plain")
        room -= len(between)
        if number == last:
            yield between + fit(text, max(room, size)), tone
            return
        yield between + fit(text, size, right=right), tone
        between, room = BETWEEN, room - size


def _needed(columns: Iterable[Column]) -> int:
    widths = [column.least if column.width is None else column.width for column in columns]
    return sum(widths) + len(BETWEEN) * (len(widths) - 1)

"""The fields of a query in words, and the note below a filter: what is wrong, or what its query may become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_line

if TYPE_CHECKING:
    from agentgym_tui.state.query import Completion
    from runner.query.fields import Field, Kind
    from runner.query.syntax import QueryError

N_ROWS: Final = 3
"""Rows of the note."""

_MAX_ERROR: Final = 400
_MAX_OPTIONS: Final = 1_000
_HINTS: Final[Mapping[Kind, str]] = {
    "text": "with * and ? as wildcards",
    "id": "as far as you know it",
    "number": "with : > >= < <= or a range such as 3..5",
    "duration": "with : > >= < <= or a range such as 30s..2m",
    "since": "an age or a time",
    "until": "an age or a time",
    "lookup": "a word, or several in quotation marks",
}


def query_note(error: QueryError | None, completion: Completion | None, width: int) -> list[Line]:
    """Return the note below a filter.

    Args:
        error: why the query cannot be used; None if it can.
        completion: what its end may become; None while the filter has no focus.
        width: columns available.
    """
    offered = [] if completion is None else _offer(completion, width)
    if error is None:
        return offered
    reason = f"✗ at {error.start + 1!s}: {masked_line(error, _MAX_ERROR)}"
    rows = wrap_text(reason, width, N_ROWS - 1 if offered else N_ROWS)
    return [*([Cell(row, "bad")] for row in rows), *offered[: N_ROWS - len(rows)]]


def describe_field(field: Field) -> str:
    """Return what a field is and how it is compared; trusted text."""
    return f"{field.description}; {_HINTS[field.kind]}"


def syntax_rows() -> Iterator[tuple[str, str]]:
    """Yield the parts of a query beside fields, and what they select; trusted texts."""
    yield "word", 'rows that contain it; "several words" in quotation marks'
    yield "a:x,y", "one of several values; a:none for a missing one"
    yield "-a:x, NOT a:x", "all other rows"
    yield "a OR b, (a b)", "one of them; both"


def _offer(completion: Completion, width: int) -> list[Line]:
    field = completion.field
    about: list[Line] = []
    if field is not None:
        meaning = describe_field(field)
        about = [[Cell(f"{field.name}: ", "accent"), Cell(meaning, "dim")]]
    if field is not None and not completion.best:
        return about
    between = " " if field is None else "  "  # all fields of episodes fit 80 columns
    options = between.join(completion.options)
    return [*([Cell(row, "dim")] for row in wrap_text(options, width, N_ROWS - len(about)) if row), *about]

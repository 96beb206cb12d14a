"""The filter of a list: an input for a query, which marks its error, completes it and recalls earlier queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from rich.highlighter import Highlighter
from textual.binding import BindingType
from textual.message import Message
from textual.suggester import Suggester

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.static_lines import StaticLines

if TYPE_CHECKING:
    from rich.text import Text

    from agentgym_tui.state.query import Completion
    from runner.query.syntax import QueryError

ERROR_STYLE: Final = "bold underline"
_TYPED: Final = -1


class ErrorMark(Highlighter):
    """Underlines the part of a query that is wrong.

    Attributes:
        error: the error; None for none.
    """

    error: QueryError | None = None

    def highlight(self, text: Text) -> None:
        if self.error is not None:
            text.stylize(ERROR_STYLE, self.error.start, self.error.end)


class QuerySuggester(Suggester):
    """Suggests the rest of a field or value.

    Args:
        complete: returns the completion of a query.
    """

    def __init__(self, complete: Callable[[str], Completion]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        best = self._complete(value).best
        return best if best.casefold().startswith(value.casefold()) else None


class FilterInput(SearchInput):
    """The filter of a list.

    Args:
        text: the query.
        placeholder: what is shown while it is empty.
        complete: returns the completion of a query.
        recall: returns the last queries, the newest first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("filter")]

    @dataclass
    class Closed(Message):
        """The user has left the filter; ``cleared`` is True if it has no query, ``taken`` if Enter ended it."""

        cleared: bool
        taken: bool = False

    def __init__(
        self, text: str, placeholder: str, complete: Callable[[str], Completion], recall: Callable[[], Sequence[str]]
    ) -> None:
        self._mark = ErrorMark()
        super().__init__(
            text,
            placeholder,
            self._mark,
            suggester=QuerySuggester(complete),
            id="filter",
            max_length=MAX_CHARS,
        )
        self._complete, self._recall = complete, recall
        self._draft, self._place = "", _TYPED

    def mark(self, error: QueryError | None) -> None:
        """Mark an error in the query; None removes the mark."""
        self._mark.error = error
        self.refresh()

    def action_clear(self) -> None:
        """Clear the filter and leave it."""
        self.value = ""
        self._close(cleared=True)

    def action_leave(self) -> None:
        """Return to the list and keep the filter; close the filter if it has no query."""
        self._close(cleared=not self.value.strip(), taken=True)

    def action_complete(self) -> None:
        """Complete the field or value at the end; return to the list if nothing can be completed."""
        best = self._complete(self.value).best if self.cursor_at_end else ""
        if best:
            self._replace(best)
        else:
            self._close(cleared=not self.value.strip())

    def action_older(self) -> None:
        """Put the query before this one into the filter."""
        if self._place == _TYPED:
            self._draft = self.value
        self._recall_at(self._place + 1)

    def action_newer(self) -> None:
        """Put the query after this one into the filter, and at last what was typed; from there, go to the list."""
        if self._place == _TYPED:
            self._close(cleared=not self.value.strip())
        else:
            self._recall_at(self._place - 1)

    def _recall_at(self, place: int) -> None:
        earlier = [text for text in self._recall() if text != self._draft.strip()]
        if place < len(earlier):
            self._place = place
            self._replace(self._draft if place == _TYPED else earlier[place])

    def _replace(self, text: str) -> None:
        self.value = text
        self.cursor_position = len(text)

    def correct(self, error: QueryError) -> None:
        """Take the focus again, with the cursor behind an error and without a selection."""
        self.select_on_focus = False
        self.screen.set_focus(self)
        self.cursor_position = error.end

    def _close(self, *, cleared: bool, taken: bool = False) -> None:
        self._place, self.select_on_focus = _TYPED, True
        self.leave(self.Closed(cleared, taken))


class FilterNote(StaticLines):
    """The note below a filter, which is hidden at first."""

    DEFAULT_CSS = """
    FilterNote { display: none; height: 3; padding: 0 1; }
    """

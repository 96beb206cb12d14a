"""The transcript of a step: blocks of wrapped text, each under a heading."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import UNSAFE_BADGE, Cell, Line, Tone
from agentgym_tui.presenters.chat_blocks import Block, BlockKind
from agentgym_tui.presenters.text_width import LIST_MARGIN, wrap_offsets
from agentgym_tui.safe_text import SafeText, safe_slice, sanitize_line, trusted, unsafe_excerpt
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.line_renderer import FOUND_TONE

_TONES: Final[dict[BlockKind, Tone]] = {
    "system": "dim",
    "thought": "dim",
    "action": "accent",
    "tool": "accent",
    "streaming": "warn",
    "warning": "warn",
    "error": "bad",
    "note": "dim",
    "earlier": "dim",
    "failed": "bad",
    "passed": "good",
    "user": "good",
    "notification": "warn",
    "annotation": "warn",
}
_INDENT: Final = 2
"""Columns that text is indented under its heading."""


class _Row(NamedTuple):
    """A row of a block; ``line`` is a line of the block, -1 for the heading, or -2 for the space below the block."""

    line: int
    start: int = 0
    stop: int = 0


_HEADING, _SPACE = _Row(-1), _Row(-2)


class BlockRows:
    """Blocks wrapped into rows of a given width; blocks that ``previous`` contains are not wrapped again.

    Args:
        blocks: the blocks to show.
        width: width of the rows in columns.
        subject: identifies the step.
        previous: the rows that these rows replace.
        expressions: what is marked in the texts.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        width: int,
        subject: str = "",
        previous: BlockRows | None = None,
        expressions: Sequence[re.Pattern[str]] = (),
    ) -> None:
        self.expressions = expressions
        self.blocks = tuple(blocks)
        self.width = width
        self.subject = subject
        wrapped_blocks = previous.wrapped_blocks if previous is not None and previous.width == width else []
        self.wrapped_blocks: list[tuple[Block, list[_Row]]] = []
        for number, block in enumerate(blocks):
            same = number < len(wrapped_blocks) and wrapped_blocks[number][0] == block
            self.wrapped_blocks.append(wrapped_blocks[number] if same else (block, _rows(block, width - _INDENT)))
        self._positions = [(number, row) for number, (_, rows) in enumerate(self.wrapped_blocks) for row in rows]

    def __len__(self) -> int:
        return len(self._positions)

    def line(self, index: int, width: int) -> Line:
        """Return row ``index``: a heading, a row of text, or an empty line."""
        number, row = self._positions[index]
        block = self.blocks[number]
        tone = _TONES.get(block.kind, "plain")
        if row == _SPACE:
            return ()
        if row == _HEADING:
            heading = (
                Cell(trusted("■ "), tone),
                Cell(block.title, tone if block.kind in ("note", "earlier") else "head"),
            )
            return (*heading, Cell(trusted("  ")), UNSAFE_BADGE) if block.has_unsafe else heading
        tone = tone if block.kind in ("thought", "error", "note", "earlier") else "plain"
        return Cell(trusted(" " * _INDENT)), *self._cells(block.lines[row.line], row, tone)

    def _cells(self, line: SafeText, row: _Row, tone: Tone) -> Iterator[Cell]:
        """Yield the part of a line that a row shows, with the words that are searched for in another tone."""
        at = row.start
        for start, stop in self._found_in(line):
            start, stop = max(start, at), min(stop, row.stop)
            if start < stop:
                yield Cell(safe_slice(line, at, start), tone)
                yield Cell(safe_slice(line, start, stop), FOUND_TONE)
                at = stop
        yield Cell(safe_slice(line, at, row.stop), tone)

    def _found_in(self, line: str) -> list[tuple[int, int]]:
        return sorted(match.span() for expression in self.expressions for match in expression.finditer(line))

    def row_of_line(self, text: str, *, from_end: bool) -> int | None:
        """Return the row with the first words that are found in a line with ``text``, else in any line.

        Args:
            text: sanitized text of a part of the line.
            from_end: whether the last such line counts instead of the first one.
        """
        rows = range(len(self._positions))
        found = [row for row in rows if (place := self._positions[row][1]).line >= 0 and self._starts_in(row, place)]
        exact = [row for row in found if text in self.blocks[self.block(row)].lines[self._positions[row][1].line]]
        best = exact or found
        return best[-1 if from_end else 0] if best else None

    def _starts_in(self, row: int, place: _Row) -> bool:
        line = self.blocks[self.block(row)].lines[place.line]
        return any(place.start <= start < place.stop for start, _ in self._found_in(line)[:1])

    def rows_with(self, expression: re.Pattern[str]) -> list[int]:
        """Return for each match of an expression the row in which it starts; it may go on in the next row."""
        starts: list[int] = []
        found: list[int] = []
        for index, (number, row) in enumerate(self._positions):
            block = self.blocks[number]
            if row == _HEADING:
                found += [index for _ in expression.finditer(block.title)]
            elif row != _SPACE:
                if row.start == 0:
                    starts = [match.start() for match in expression.finditer(block.lines[row.line])]
                found += [index] * (bisect_left(starts, row.stop) - bisect_left(starts, row.start))
        return found

    def row_of_block(self, number: int) -> int:
        """Return the first row of a block."""
        return next((row for row, (block, _) in enumerate(self._positions) if block == number), 0)

    def key(self, index: int) -> str:
        """Return a key that consists of the row's block, line and start offset."""
        number, row = self._positions[index]
        return f"{self.subject}/{number}.{row.line}.{row.start}"

    def block(self, index: int) -> int:
        """Return the index of the block that row ``index`` belongs to."""
        return self._positions[index][0]

    def is_text(self, index: int) -> bool:
        """Return whether row ``index`` is a heading or text, not the space between two blocks."""
        return self._positions[index][1] != _SPACE


class Transcript(LineList):
    """The blocks of a step."""

    def __init__(self, *, id: str | None = None) -> None:
        self._rows = BlockRows((), 0)
        super().__init__(self._rows, cursor_type="none", id=id)

    def show_blocks(self, blocks: Sequence[Block], *, subject: str = "", follow: bool | None = None) -> None:
        """Show the blocks of a step.

        Args:
            blocks: the blocks of a step.
            subject: identifies episode and step; a new subject is shown from its first row.
            follow: whether to stay at the end; None keeps the user's choice.
        """
        is_new = subject != self._rows.subject
        self._rows = BlockRows(blocks, self._text_width(), subject, self._rows, self._rows.expressions)
        self.show(self._rows, follow=follow)
        if is_new and not self.follow:
            self.action_top()

    def find(self, expressions: Sequence[re.Pattern[str]], line: str, *, from_end: bool = False) -> None:
        """Mark words, also in steps shown later, and go to a line that has them.

        Args:
            expressions: what finds the words.
            line: a part of the line, untrusted; "" for any line.
            from_end: whether to go to the last such line instead of the first one.
        """
        self._rows.expressions = expressions
        row = self._rows.row_of_line(sanitize_line(line.strip(), len(line)), from_end=from_end)
        self.refresh_lines()
        if row is not None:
            self.move_to(row)

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        """Return for each match of an expression the row in which it starts."""
        return self._rows.rows_with(expression)

    def go_to_block(self, number: int) -> None:
        """Show a block from its heading on."""
        row = self._rows.row_of_block(number)
        self.move_to(len(self._rows) - 1)  # so that the row comes to the top
        self.move_to(row)

    @property
    def block_in_view(self) -> int:
        """Number of the block under the cursor; -1 without blocks."""
        return self._rows.block(self.cursor) if self.cursor < len(self._rows) else -1

    def unsafe_text(self) -> str | None:
        """Return the raw text of the block under the cursor, else of a visible block, if sanitizing changed it."""
        rows_in_view = [self.cursor, *self._in_view()] if len(self._rows) else []
        blocks = [self._rows.blocks[number] for number in dict.fromkeys(self._rows.block(row) for row in rows_in_view)]
        return next((unsafe_excerpt(block.raw) for block in blocks if block.has_unsafe), None)

    def mark(self, index: int) -> str:
        """Return a bar for the rows of the block under the cursor while the transcript has the focus, else a space."""
        rows = self._rows
        return "▎" if self.has_focus and rows.is_text(index) and rows.block(index) == rows.block(self.cursor) else " "

    def on_resize(self) -> None:
        """Wrap the lines for the new width."""
        if self._text_width() != self._rows.width:
            rows = self._rows
            self._rows = BlockRows(rows.blocks, self._text_width(), rows.subject, expressions=rows.expressions)
            self.show(self._rows)

    def _text_width(self) -> int:
        return max(self.scrollable_content_region.width - LIST_MARGIN, 0)


def _rows(block: Block, width: int) -> list[_Row]:
    text = [_Row(number, *place) for number, line in enumerate(block.lines) for place in wrap_offsets(line, width)]
    return [_HEADING, *text, _SPACE]

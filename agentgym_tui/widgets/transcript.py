"""The lists of an episode: blocks of wrapped text under headings, the waterfall of spans, and the plot of rewards."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, zip_longest
from typing import ClassVar, Final, TypeAlias

from textual.selection import Selection
from textual.strip import Strip

from agentgym_tui.commands import keymap_of
from agentgym_tui.presenters.cells import LIST_MARGIN, Cell, FixedLines, FoldedText, Line, Tone, fit, wrap_offsets
from agentgym_tui.presenters.episode_facts import STEP_COLUMNS, SpanRows, StepRows, trace_legend
from agentgym_tui.presenters.live import reward_lines
from agentgym_tui.presenters.transcript import Block, BlockKind
from agentgym_tui.safe_text import UNSAFE_MARK, sanitize_line, unsafe_excerpt
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.servers import RewardPoint
from agentgym_tui.widgets.lists import LineList, RowCells, Table, mark_places
from runner.types import Span

_KINDS: Final[dict[Tone, tuple[BlockKind, ...]]] = {
    "accent": ("action", "tool"),
    "bad": ("error", "failed"),
    "dim": ("system", "thought", "note", "earlier"),
    "good": ("passed", "user"),
    "warn": ("streaming", "warning", "notification", "annotation"),
}
_TONES: Final = {kind: tone for tone, kinds in _KINDS.items() for kind in kinds}
_INDENT: Final = 2  # columns that text is indented under its heading
_DURATION_WIDTH: Final = 9  # columns of a duration

_Row: TypeAlias = "tuple[int, int, int]"
"""A row of a block: a line of the block, -1 for the heading or -2 for the space below, and start and end in it."""

_HEADING: Final[_Row] = (-1, 0, 0)
_SPACE: Final[_Row] = (-2, 0, 0)
_MARK: Final = "■ "
SELECTED: Final[Tone] = "blue-solid"
"""Tone of text that is selected with the mouse."""
UNSAFE_BADGE: Final = Cell(f"{UNSAFE_MARK} unsafe bytes", "warn")


class BlockRows(FoldedText):
    """Blocks of the step ``subject``, wrapped to ``width``; those of ``previous`` too are not wrapped again."""

    def __init__(
        self, blocks: Sequence[Block], width: int, subject: str = "", previous: BlockRows | None = None
    ) -> None:
        self.blocks, self.width, self.subject = tuple(blocks), width, subject
        known = previous.wrapped_blocks if previous is not None and previous.width == width else []
        self.wrapped_blocks: list[tuple[Block, list[_Row]]] = [
            wrapped if wrapped is not None and wrapped[0] == block else (block, _rows_of(block, width - _INDENT))
            for block, wrapped in zip_longest(blocks, known[: len(blocks)])
        ]
        self._starts = [0, *accumulate(len(rows) for _, rows in self.wrapped_blocks)]
        self._matches: tuple[re.Pattern[str] | None, dict[int, list[tuple[int, int]]]] = (None, {})

    def __len__(self) -> int:
        return self._starts[-1]

    def line(self, index: int, width: int) -> Line:
        block, (number, start, stop) = self._at(index)
        tone = _TONES.get(block.kind, "plain")
        if number == _SPACE[0]:
            return ()
        if number == _HEADING[0]:
            heading = (Cell(_MARK, tone), Cell(block.title, tone if block.kind in ("note", "earlier") else "head"))
            return (*heading, Cell("  "), UNSAFE_BADGE) if block.has_unsafe else heading
        tone = tone if block.kind in ("thought", "error", "note", "earlier") else "plain"
        return Cell(" " * _INDENT), Cell(block.lines[number][start:stop], tone)

    def row_of_line(self, text: str, expression: re.Pattern[str], *, from_end: bool) -> int | None:
        """Return the row with the first match in a line with the sanitized ``text``, else in any line."""
        found = [(row, *self._at(row)) for row in self.find_rows(expression)]
        rows = [(row, text in block.lines[line]) for row, block, (line, _, _) in found if line >= 0]
        best = [row for row, is_exact in rows if is_exact] or [row for row, _ in rows]
        return best[-1 if from_end else 0] if best else None

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        found: list[int] = []
        for number, (block, rows) in enumerate(self.wrapped_blocks):
            first = self._starts[number]
            found += [first for _ in expression.finditer(block.title)]
            if places := self._places(number, expression):
                ends = list(accumulate(map(len, block.lines), lambda end, size: end + 1 + size))
                starts = [start + (ends[line - 1] + 1 if line else 0) for line, start, _ in rows[1:-1]]
                found += [first + bisect_right(starts, place[0]) for place in places]
            found += [self._starts[number + 1] - 2 for _ in block.matches_hidden(expression)]
        return found

    def found_in(self, index: int, expression: re.Pattern[str]) -> list[tuple[int, int]]:
        block, (line, start, stop) = self._at(index)
        if line == _HEADING[0]:
            spans = (match.span() for match in expression.finditer(block.title))
            return [(left + len(_MARK), right + len(_MARK)) for left, right in spans]
        if line == _SPACE[0]:
            return []
        if line == len(block.lines) - 1 and any(block.matches_hidden(expression)):
            return [(_INDENT, _INDENT + stop - start)]
        before = sum(len(each) + 1 for each in block.lines[:line]) + start
        places = self._places(self.block(index), expression)
        parts = ((max(left - before, 0), min(right - before, stop - start)) for left, right in places)
        return [(left + _INDENT, right + _INDENT) for left, right in parts if left < right]

    def _places(self, number: int, expression: re.Pattern[str]) -> list[tuple[int, int]]:
        """Return start and end of each match in the lines of a block, joined by line breaks."""
        if self._matches[0] != expression:
            self._matches = expression, {}
        places = self._matches[1]
        if number not in places:
            text = "\n".join(self.blocks[number].lines)
            places[number] = [match.span() for match in expression.finditer(text)]
        return places[number]

    def selected(self, selection: Selection) -> str:
        """Return the text of a selection, whose offsets are rows and their characters; wrapped lines are one again."""
        text, before = "", (-1, _SPACE)
        first = selection.start.y if selection.start is not None else 0
        last = selection.end.y if selection.end is not None else len(self) - 1
        for index in range(max(first, 0), min(last + 1, len(self))):
            block, row = self._at(index)
            shown = "".join(cell.text for cell in self.line(index, self.width))
            left, right = selection.get_span(index) or (0, 0)
            is_same_line = row[0] >= 0 and (self.block(index), row[0]) == (before[0], before[1][0])
            text += block.lines[row[0]][before[1][2] : row[1]] if is_same_line else "\n" if index > first else ""
            text += shown[max(left, 0 if row == _HEADING else _INDENT) : right if right >= 0 else None]
            before = self.block(index), row
        return text

    def row_of_block(self, number: int) -> int:
        return self._starts[number] if 0 <= number < len(self.blocks) else 0

    def key(self, index: int) -> str:
        _, (line, start, _) = self._at(index)
        return f"{self.subject}/{self.block(index)}.{line}.{start}"

    def block(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def is_text(self, index: int) -> bool:
        return self._at(index)[1] != _SPACE

    def _at(self, index: int) -> tuple[Block, _Row]:
        number = self.block(index)
        block, rows = self.wrapped_blocks[number]
        return block, rows[index - self._starts[number]]


class Transcript(LineList):
    """The blocks of a step; a mouse that is dragged selects text."""

    ALLOW_SELECT = True

    def __init__(self, *, id: str | None = None) -> None:
        self._rows = BlockRows((), 0)
        super().__init__(self._rows, cursor_type="none", id=id)

    def show_blocks(self, blocks: Sequence[Block], *, subject: str = "", follow: bool | None = None) -> None:
        """Show blocks of the episode and step ``subject``, a new one from its first row; ``follow`` as in ``show``."""
        if (is_new := subject != self._rows.subject) and self.is_attached and self.text_selection is not None:
            self.screen.clear_selection()
        self._rows = BlockRows(blocks, self._text_width(), subject, self._rows)
        self.show(self._rows, follow=follow)
        if is_new and not self.follow:
            self.action_top()

    def find(self, expression: re.Pattern[str], line: str, *, from_end: bool = False) -> None:
        """Mark words, also in steps shown later, and go to the first (or last) line that has them.

        ``line`` is a part of the line, untrusted; "" for any line.
        """
        self.found = expression
        row = self._rows.row_of_line(sanitize_line(line.strip(), len(line)), expression, from_end=from_end)
        if row is not None:
            self.move_to(row)

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
        rows_in_view = [self.cursor, *self._in_view()] if len(self._rows) else []
        blocks = [self._rows.blocks[number] for number in dict.fromkeys(self._rows.block(row) for row in rows_in_view)]
        return next((unsafe_excerpt(block.raw) for block in blocks if block.has_unsafe), None)

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        return self._rows.selected(selection), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh_changed()

    def row_cells(self, index: int, width: int) -> RowCells:
        cells = super().row_cells(index, width)
        span = selection.get_span(index) if (selection := self.text_selection) is not None else None
        return cells if span is None else mark_places(cells, [(span[0], span[1] if span[1] >= 0 else width)], SELECTED)

    def _strip(self, row_cells: RowCells, mark: str, highlighted: bool) -> Strip:
        return super()._strip(row_cells, mark, highlighted).simplify()  # as parts with offsets cannot be joined later

    def _draw_row(self, y: int) -> Strip:
        return super()._draw_row(y).apply_offsets(self._left - 1, self._top + y)  # where a selection starts or ends

    def mark(self, index: int) -> str:
        rows = self._rows
        return "▎" if self.has_focus and rows.is_text(index) and rows.block(index) == rows.block(self.cursor) else " "

    def on_resize(self) -> None:
        if self._text_width() != self._rows.width:
            rows = self._rows
            self._rows = BlockRows(rows.blocks, self._text_width(), rows.subject)
            self.show(self._rows)

    def _text_width(self) -> int:
        return max(self.scrollable_content_region.width - LIST_MARGIN, 0)


def _rows_of(block: Block, width: int) -> list[_Row]:
    text = [(number, *place) for number, line in enumerate(block.lines) for place in wrap_offsets(line, width)]
    return [_HEADING, *text, _SPACE]


class StepTable(Table):
    """The steps of an episode; a gap is one row, which stands for its first missing step."""

    def __init__(self) -> None:
        super().__init__(STEP_COLUMNS, id="steps")

    def show_steps(
        self, episode: Episode | None, waiting_s: Callable[[], float | None] = lambda: None, follow: bool | None = None
    ) -> None:
        """Show the steps of an episode, or none; ``waiting_s`` as in ``StepRows``, ``follow`` as in ``show``."""
        rows = StepRows(episode, waiting_s) if episode is not None else None
        self.set_columns(rows.columns if rows else STEP_COLUMNS)
        self.show(rows or FixedLines(()), follow=follow)

    @property
    def step(self) -> int:
        key = self.key.removeprefix("gap")
        return int(key) if key.isdecimal() and len(self.source) else 0


class Waterfall(LineList):
    """The spans of an episode as a tree; each row has a bar on the common time axis (Perfetto's track model)."""

    N_HEADER: ClassVar[int] = 1

    def __init__(self, *, id: str | None = None) -> None:
        self._rows = SpanRows(())
        super().__init__(self._rows, id=id)

    def show_spans(self, spans: Sequence[Span], *, opened: Collection[int] = (), step: int | None = None) -> None:
        """``step`` as in ``SpanRows``."""
        self._rows = SpanRows(spans, opened, step)
        self.show(self._rows)

    @property
    def position(self) -> int | None:
        """Position of the span under the cursor in the given list; None without one."""
        return self._rows.position(self.cursor)

    def find_rows(self, expression: re.Pattern[str]) -> list[int]:
        rows = self._rows
        return [index for index in range(len(rows)) for _ in expression.finditer(rows.name(index).text)]

    def header(self, width: int, row: int = 0) -> Iterable[tuple[str, Tone]]:
        name, bar = _column_widths(width)
        yield fit("span", name + 1), "head"
        yield fit(self._rows.axis(bar), bar), "dim"

    def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
        rows, (name, bar) = self._rows, _column_widths(width)
        if rows.is_attribute(index):
            yield rows.name(index)
            return
        for cell, room in ((rows.name(index), name), (rows.bar(index, bar), bar)):
            yield fit(cell.text, room) + " ", cell.tone
        yield fit(rows.duration(index).text, _DURATION_WIDTH, right=True), "plain"


class EpisodeWaterfall(Waterfall):
    """A waterfall below a legend of its colors, with what it shows: all steps, or one."""

    N_HEADER: ClassVar[int] = 2

    def header(self, width: int, row: int = 0) -> Iterable[tuple[str, Tone]]:
        if row == 0:
            yield from trace_legend(width)
            return
        (title, tone), *axis = super().header(width)
        key, step = keymap_of(self.app).key("trace.zoom"), self._rows.step
        shown = f"all steps · {key}: one" if step is None else f"step {step} · {key}: all"
        yield fit(shown, len(title)), tone
        yield from axis


def _column_widths(width: int) -> tuple[int, int]:
    name = min(max(width // 3, 12), 48)
    return name, max(width - name - _DURATION_WIDTH - 2, 1)


class RewardPlot(LineList):
    """A plot of the rewards and the success rate of an environment's episodes; it fills the widget."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor_type="none", id=id)
        self._points: Sequence[RewardPoint] = ()

    def show_points(self, points: Sequence[RewardPoint]) -> None:
        self._points = points
        size = self.scrollable_content_region
        self.show(FixedLines(reward_lines(points, max(size.width - LIST_MARGIN, 0), size.height)))

    def on_resize(self) -> None:
        self.show_points(self._points)

"""The subjects of a bus as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from agentgym_tui.presenters.cells import Cell, Column, Line, Tone
from agentgym_tui.presenters.number_format import quantity
from agentgym_tui.presenters.sorting import Sorting
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.state.subject_tree import MAX_SUBJECTS, Branch, By, SubjectTree

SUBJECT_COLUMNS: Final = (
    Column("subject", None, least=10),
    Column("count", 5, right=True, rank=1),
    Column("rate", 6, right=True, rank=2),
)
USUAL: Final = Sorting("subject")
_BY: Final[tuple[By, ...]] = get_args(By)
_INDENT: Final = 2
"""Columns by which a branch is further right than the one above it, as long as there is room for its word."""


class SubjectRows:
    """The rows of a tree as they were when this was made; the keys are the words down to each."""

    def __init__(self, branches: Sequence[Branch] = (), n_others: int = 0) -> None:
        """``n_others``: messages on subjects that there was no room for."""
        self.branches = branches
        self._n_others = n_others

    @classmethod
    def of(cls, tree: SubjectTree, sorting: Sorting | None = None) -> SubjectRows:
        """Of a tree, in an order; by subject where that is of no column."""
        column, descending = sorting or USUAL
        by = next((by for by in _BY if by == column), None)
        return cls(tree.rows(by or "subject", descending=descending and by is not None), tree.n_others)

    def __len__(self) -> int:
        """How many rows."""
        return len(self.branches) + bool(self._n_others)

    def line(self, index: int, width: int) -> Line:
        """Word, count, rate."""
        if index >= len(self.branches):
            others = own(f"beyond {MAX_SUBJECTS:,} subjects")
            return [Cell(others, "warn"), Cell(quantity(self._n_others)), Cell(own(""))]
        branch = self.branches[index]
        sign = own("" if not branch.n_below else "▾ " if branch.is_open else "▹ ")
        closed = own("" if branch.is_open or not branch.n_below else f" ({quantity(branch.n_below)})")
        more = own(" …" if branch.is_cut else "")
        indent = own(" " * min(_INDENT * branch.depth, width // 4))
        name = join([indent, sign, line(branch.word, 100), closed, more])
        tone: Tone = "plain" if branch.n else "dim"
        return [Cell(name, tone), Cell(quantity(branch.n), tone), Cell(per_second(branch.rate), "dim")]

    def key(self, index: int) -> str:
        """The words of a subject with dots; of the last row none."""
        return self.branches[index].path if index < len(self.branches) else ""

    def branch(self, index: int) -> Branch | None:
        """The one of a row."""
        return self.branches[index] if index < len(self.branches) else None


def per_second(rate: float) -> Safe:
    """Such as ``0.5/s`` and ``1.2k/s``; nothing where nothing comes."""
    if rate <= 0:
        return own("")
    return own(f"{rate:.1f}/s" if rate < 9.95 else f"{quantity(round(rate))}/s")

"""What is said where: subjects as a tree, with counts and rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

SubjectOrder: TypeAlias = Literal["subject", "count", "rate"]
"""What branches are put in order by."""

MAX_SUBJECTS: Final = 6_000
MAX_OVERFLOW_GROUPS: Final = 200
"""First words under which further subjects are counted, not told apart."""

MAX_SUBJECT_CHARS: Final = 256
"""Characters of a subject that tell it from others."""

MAX_DEPTH: Final = 16
AUTO_OPEN_MAX: Final = 16
"""Branches of one with more than so many are closed at first."""


class _SubjectCount(msgspec.Struct):
    n: int = 0
    n_before: int = 0
    rate: float = 0.0


class _Node(msgspec.Struct):
    n: int = 0
    rate: float = 0.0
    is_subject: bool = False
    is_truncated: bool = False
    children: dict[str, _Node] = msgspec.field(default_factory=dict)


class SubjectRow(NamedTuple):
    """A row of the tree: a word of subjects, and what is said there and below.

    Attributes:
        path: the words down to this one.
        n: messages; ``rate`` of them per second.
        n_below: rows right below it, shown or not.
        is_subject: something is said on ``path`` itself.
        is_cut: there is more below than is told apart.
    """

    path: str
    word: str
    depth: int
    n: int
    rate: float
    n_children: int
    is_open: bool
    is_subject: bool
    is_truncated: bool = False

    @property
    def patterns(self) -> tuple[str, ...]:
        """What to subscribe to for all of it; the words are hostile text."""
        below = (f"{self.path}.>",) if self.n_children or self.is_truncated else ()
        return (self.path, *below) if self.is_subject or not below else below


class SubjectTree:
    """The subjects of a bus.

    Attributes:
        rate: messages per second, all together.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.rate = 0.0
        self._leaves: dict[str, _SubjectCount] = {}
        self._interned: dict[str, str] = {}
        self._overflow: dict[str, _SubjectCount] = {}
        self._others = _SubjectCount()
        self._toggled: set[str] = set()
        self._ticked_at: float | None = None

    def __len__(self) -> int:
        """How many subjects."""
        return len(self._leaves)

    @property
    def n_others(self) -> int:
        """Messages on further subjects, when there are too many even by their first words."""
        return self._others.n

    def add(self, subject: str) -> str:
        """Count a message; returns the subject, as one object for all its messages."""
        if (leaf := self._leaves.get(subject)) is None:
            subject, leaf = self._new(subject)
        leaf.n += 1
        return self._interned.get(subject, subject)

    def reset_counts(self) -> None:
        """Count from 0; the subjects stay known."""
        for leaf in self._all_counts():
            leaf.n = leaf.n_before = 0
            leaf.rate = 0.0
        self.rate, self._ticked_at = 0.0, None

    def tick(self, now: float) -> None:
        """Work out the rates since the last time, by a monotonic clock."""
        passed = None if self._ticked_at is None else now - self._ticked_at
        if passed is not None and passed <= 0:
            return
        for leaf in self._all_counts():
            leaf.rate = (leaf.n - leaf.n_before) / passed if passed else 0.0
            leaf.n_before = leaf.n
        self._ticked_at = now
        self.rate = sum(leaf.rate for leaf in self._all_counts())

    def toggle(self, path: str) -> None:
        """Open what is closed, or close it."""
        self._toggled ^= {path}

    def rows(self, by: SubjectOrder = "subject", *, descending: bool = False) -> list[SubjectRow]:
        """The tree, the branches of each in an order; closed ones without what is below them."""
        return list(_rows(self._tree(), _child_order(by, descending), self._toggled))

    def _new(self, subject: str) -> tuple[str, _SubjectCount]:
        subject = subject[:MAX_SUBJECT_CHARS]
        if (leaf := self._leaves.get(subject)) is not None:
            return subject, leaf
        if len(self._leaves) >= MAX_SUBJECTS:
            return subject, self._overflow_count(subject)
        self._interned[subject] = subject
        return subject, self._leaves.setdefault(subject, _SubjectCount())

    def _overflow_count(self, subject: str) -> _SubjectCount:
        """Where a subject is counted that there is no room for."""
        first = subject.partition(".")[0]
        if first not in self._overflow and len(self._overflow) >= MAX_OVERFLOW_GROUPS:
            return self._others
        return self._overflow.setdefault(first, _SubjectCount())

    def _all_counts(self) -> Iterator[_SubjectCount]:
        yield from self._leaves.values()
        yield from self._overflow.values()
        yield self._others

    def _tree(self) -> _Node:
        root = _Node()
        for subject, leaf in self._leaves.items():
            node = root
            for word in subject.split(".", MAX_DEPTH - 1):
                node = node.children.setdefault(word, _Node())
                node.n += leaf.n
                node.rate += leaf.rate
            node.is_subject = True
        for first, leaf in self._overflow.items():
            node = root.children.setdefault(first, _Node(is_subject=True))
            node.is_truncated = True
            node.n += leaf.n
            node.rate += leaf.rate
        return root


_ChildOrder: TypeAlias = Callable[[_Node], list[str]]


def _child_order(by: SubjectOrder, descending: bool) -> _ChildOrder:
    """The words below a node in an order; equal ones stay in that of the alphabet."""

    def ranked(node: _Node) -> list[str]:
        if by == "subject":
            return sorted(node.children, reverse=descending)
        sizes = {word: found.n if by == "count" else found.rate for word, found in node.children.items()}
        return sorted(sorted(sizes), key=sizes.__getitem__, reverse=descending)

    return ranked


def _rows(node: _Node, ranked: _ChildOrder, toggled: Set[str], above: str = "", depth: int = 0) -> Iterator[SubjectRow]:
    for word in ranked(node):
        found, path = node.children[word], f"{above}.{word}" if depth else word
        is_open = (len(found.children) <= AUTO_OPEN_MAX) != (path in toggled)
        yield SubjectRow(
            path, word, depth, found.n, found.rate, len(found.children), is_open, found.is_subject, found.is_truncated
        )
        if is_open:
            yield from _rows(found, ranked, toggled, path, depth + 1)

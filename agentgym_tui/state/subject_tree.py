"""Tree of the subjects of a bus, with message counts and rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

SubjectOrder: TypeAlias = Literal["subject", "count", "rate"]  # sorts the rows of a branch
MAX_SUBJECTS: Final = 6_000  # with a count of their own
MAX_OVERFLOW_GROUPS: Final = 200  # of all further subjects with the same first word
MAX_SUBJECT_CHARS: Final = 256  # by which subjects are distinguished
MAX_DEPTH: Final = 16
AUTO_OPEN_MAX: Final = 16  # children of a branch that is open before the user toggles it


class _SubjectCount(msgspec.Struct):
    n: int = 0
    n_live: int = 0
    rate: float = 0.0


class _Node(msgspec.Struct):
    n: int = 0
    rate: float = 0.0
    is_subject: bool = False
    is_truncated: bool = False
    children: dict[str, _Node] = msgspec.field(default_factory=dict)


class SubjectRow(NamedTuple):
    """A row of the tree, which stands for one word of a subject."""

    path: str  # words from the root to that of this row, joined by dots
    word: str
    depth: int
    n: int  # on ``path`` and all subjects below it, as ``rate``
    rate: float  # live messages per second
    n_children: int  # also hidden ones, directly below
    is_open: bool
    is_subject: bool  # messages arrive on ``path`` itself
    is_truncated: bool = False  # it has subjects without rows, which are only counted together

    @property
    def patterns(self) -> tuple[str, ...]:
        """Match all messages on ``path`` and below it; untrusted text."""
        below = (f"{self.path}.>",) if self.n_children or self.is_truncated else ()
        return (self.path, *below) if self.is_subject or not below else below


class SubjectTree:
    """Message counts and rates of the subjects of a bus; ``rate`` is that of live messages on all of them."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._counts: dict[str, _SubjectCount] = {}
        self._interned: dict[str, str] = {}
        self._overflow: dict[str, _SubjectCount] = {}
        self._others = _SubjectCount()
        self._toggled: set[str] = set()
        self._ticked_at: float | None = None

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def n_others(self) -> int:
        """Messages on subjects that have neither a count of their own nor a group."""
        return self._others.n

    def add(self, subject: str, *, is_live: bool = True) -> str:
        """Count a message, in the rates only a live one; return its subject as an object that they all share."""
        if (count := self._counts.get(subject)) is None:
            subject, count = self._new(subject)
        count.n += 1
        count.n_live += is_live
        return self._interned.get(subject, subject)

    def reset_counts(self) -> None:
        for count in self._all_counts():
            count.n = count.n_live = 0
            count.rate = 0.0
        self.rate, self._ticked_at = 0.0, None

    def tick(self, now: float) -> None:
        """Compute the rates since the last call; ``now`` is in seconds of a monotonic clock."""
        elapsed_s = None if self._ticked_at is None else now - self._ticked_at
        if elapsed_s is not None and elapsed_s <= 0:
            return
        for count in self._all_counts():
            count.rate = count.n_live / elapsed_s if elapsed_s else 0.0
            count.n_live = 0
        self._ticked_at = now
        self.rate = sum(count.rate for count in self._all_counts())

    def toggle(self, path: str) -> None:
        self._toggled ^= {path}

    def rows(self, by: SubjectOrder = "subject", *, descending: bool = False) -> list[SubjectRow]:
        """Return the shown rows; those below the same row are sorted."""
        return list(_rows(self._tree(), _child_order(by, descending), self._toggled))

    def _new(self, subject: str) -> tuple[str, _SubjectCount]:
        subject = subject[:MAX_SUBJECT_CHARS]
        if (count := self._counts.get(subject)) is not None:
            return subject, count
        if len(self._counts) >= MAX_SUBJECTS:
            return subject, self._overflow_count(subject)
        self._interned[subject] = subject
        return subject, self._counts.setdefault(subject, _SubjectCount())

    def _overflow_count(self, subject: str) -> _SubjectCount:
        first = subject.partition(".")[0]
        if first not in self._overflow and len(self._overflow) >= MAX_OVERFLOW_GROUPS:
            return self._others
        return self._overflow.setdefault(first, _SubjectCount())

    def _all_counts(self) -> Iterator[_SubjectCount]:
        yield from self._counts.values()
        yield from self._overflow.values()
        yield self._others

    def _tree(self) -> _Node:
        root = _Node()
        for subject, count in self._counts.items():
            node = root
            for word in subject.split(".", MAX_DEPTH - 1):
                node = node.children.setdefault(word, _Node())
                node.n += count.n
                node.rate += count.rate
            node.is_subject = True
        for first, count in self._overflow.items():
            node = root.children.setdefault(first, _Node(is_subject=True))
            node.is_truncated = True
            node.n += count.n
            node.rate += count.rate
        return root


_ChildOrder: TypeAlias = Callable[[_Node], list[str]]


def _child_order(by: SubjectOrder, descending: bool) -> _ChildOrder:
    """Return a function that sorts the words below a tree node; words with equal values stay in alphabetical order."""
    if by == "subject":
        return lambda node: sorted(node.children, reverse=descending)
    value = attrgetter("n" if by == "count" else "rate")
    return lambda node: sorted(sorted(node.children), key=lambda word: value(node.children[word]), reverse=descending)


def _rows(node: _Node, order: _ChildOrder, toggled: Set[str], above: str = "", depth: int = 0) -> Iterator[SubjectRow]:
    for word in order(node):
        child, path = node.children[word], f"{above}.{word}" if depth else word
        is_open = (len(child.children) <= AUTO_OPEN_MAX) != (path in toggled)
        yield SubjectRow(
            path, word, depth, child.n, child.rate, len(child.children), is_open, child.is_subject, child.is_truncated
        )
        if is_open:
            yield from _rows(child, order, toggled, path, depth + 1)

from __future__ import annotations

import pytest

from agentgym_tui.state.event_log import (
    AUTO_OPEN_MAX,
    MAX_OVERFLOW_GROUPS,
    MAX_SUBJECT_CHARS,
    MAX_SUBJECTS,
    SubjectOrder,
    SubjectTree,
)


def test_a_branch_counts_the_messages_below_it() -> None:
    tree = SubjectTree()
    for subject in ("b", "a.x.1", "a.x.2", "a.x.2", "a.x", "a.y"):
        tree.add(subject)
    assert [(row.path, row.depth, row.n, row.n_children, row.is_subject) for row in tree.rows()] == [
        ("a", 0, 5, 2, False),
        ("a.x", 1, 4, 2, True),
        ("a.x.1", 2, 1, 0, True),
        ("a.x.2", 2, 2, 0, True),
        ("a.y", 1, 1, 0, True),
        ("b", 0, 1, 0, True),
    ]
    assert [row.patterns for row in tree.rows()][:3] == [("a.>",), ("a.x", "a.x.>"), ("a.x.1",)]


@pytest.mark.parametrize(
    ("by", "descending", "paths"),
    [
        ("subject", False, ["a", "a.x", "a.y", "b", "c"]),
        ("subject", True, ["c", "b", "a", "a.y", "a.x"]),
        ("count", True, ["a", "a.y", "a.x", "b", "c"]),
        ("count", False, ["b", "c", "a", "a.x", "a.y"]),
        ("rate", True, ["c", "a", "a.x", "a.y", "b"]),
    ],
)
def test_a_tree_is_sorted_within_each_branch(by: SubjectOrder, descending: bool, paths: list[str]) -> None:
    tree = SubjectTree()
    for subject in ("a.x", "a.y", "a.y", "b"):
        tree.add(subject)
    tree.tick(1.0)
    tree.add("c")
    tree.tick(2.0)
    assert [row.path for row in tree.rows(by, descending=descending)] == paths


def test_large_branches_are_closed_until_they_are_opened() -> None:
    tree = SubjectTree()
    for n in range(AUTO_OPEN_MAX + 1):
        tree.add(f"orders.{n}")
    assert [row.word for row in tree.rows()] == ["orders"] and not tree.rows()[0].is_open
    tree.toggle("orders")
    assert len(tree.rows()) == AUTO_OPEN_MAX + 2
    tree.toggle("orders")
    assert len(tree.rows()) == 1


def test_rates_are_per_second_and_fall_to_zero() -> None:
    tree = SubjectTree()
    tree.tick(10.0)
    for _ in range(6):
        tree.add("a.b")
    tree.add("c")
    tree.tick(12.0)
    assert tree.rate == 3.5 and [row.rate for row in tree.rows()] == [3.0, 3.0, 0.5]
    tree.tick(12.0)
    assert tree.rate == 3.5
    tree.tick(13.0)
    assert tree.rate == 0.0
    tree.reset_counts()
    assert [(row.word, row.n) for row in tree.rows()] == [("a", 0), ("b", 0), ("c", 0)]


def test_subjects_beyond_the_limit_are_counted_together() -> None:
    tree = SubjectTree()
    for n in range(MAX_SUBJECTS + 10):
        tree.add(f"inbox.{n}")
    deep = ".".join("x" * 3_000)
    assert len(tree.add(deep)) == MAX_SUBJECT_CHARS
    assert len(tree) == MAX_SUBJECTS and tree.n_others == 0
    assert [(row.word, row.n, row.is_truncated, row.patterns) for row in tree.rows()] == [
        ("inbox", MAX_SUBJECTS + 10, True, ("inbox.>",)),
        ("x", 1, True, ("x", "x.>")),
    ]
    for n in range(MAX_OVERFLOW_GROUPS + 10):
        tree.add(f"{n}.a")
    assert tree.n_others == 12 and len(tree.rows()) == MAX_OVERFLOW_GROUPS
    tree.tick(1.0)
    tree.add("inbox.new")
    tree.tick(2.0)
    assert tree.rate == 1.0 and next(row for row in tree.rows() if row.word == "inbox").rate == 1.0
    tree.reset_counts()
    assert tree.n_others == 0 and {row.n for row in tree.rows()} == {0}

"""Two episodes aligned step by step, and the differences within their texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.results.alignment import MAX_DIFF_WORDS, Segment, align, word_segments
from runner.store import EpisodeRecord
from runner.types import Action
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory

WORDS = st.lists(st.sampled_from(["a", "b", "wall", " ", "\n", ",", "1"]), max_size=30).map("".join)


def played(*steps: tuple[str, str, float], **fields: Any) -> EpisodeRecord:  # noqa: ANN401
    header = episode_header()
    made = [
        make_step(index, action=Action(action), observation=[{"role": "user", "content": text}], reward=reward)
        for index, (action, text, reward) in enumerate(steps)
    ]
    return finished_record(header, make_trajectory(header, made, **fields))


def test_the_first_step_that_differs_is_the_divergence() -> None:
    left = played(("up", "a wall", 0.0), ("left", "a door", 0.0), ("open", "done", 1.0))
    right = played(("up", "a wall", 0.0), ("left", "a door", 0.5))
    aligned = align(left, right)
    assert [step.differences for step in aligned.steps] == [(), ("reward",), ("missing",)]
    assert aligned.divergence == 1
    assert not aligned.reset_differs
    assert (aligned.steps[2].left is None, aligned.steps[2].right) == (False, None)


def test_equal_episodes_have_no_divergence_whatever_they_took() -> None:
    left = played(("up", "a wall", 0.0), duration_s=1.0)
    assert align(left, played(("up", "a wall", 0.0), duration_s=9.0)).divergence is None
    other = played(("up", "a wall", 0.0), reset_observation=[{"role": "user", "content": "another task"}])
    assert align(left, other).reset_differs


def test_the_shapes_of_requests_are_named_where_they_differ() -> None:
    left, right = played(("up", "a wall", 0.0)), played(("up", "a wall", 0.0))
    assert align(left, right).shape_note == ""
    right.timesteps[0].shape = "tools as text"
    aligned = align(left, right)
    assert (aligned.shapes, aligned.divergence) == (("", "tools as text"), None)
    assert aligned.shape_note == "requests differ: A as usual, B tools as text"


@pytest.mark.parametrize(
    ("left", "right", "segments"),
    [
        ("", "", []),
        ("a b", "a b", [("a b", "a b", True)]),
        ("a b c", "a x c", [("a ", "a ", True), ("b", "x", False), (" c", " c", True)]),
        ("go up now", "go down left now", [("go ", "go ", True), ("up", "down left", False), (" now", " now", True)]),
        ("a", "", [("a", "", False)]),
        ("e\u0301 x", "e\u0300 x", [("e\u0301", "e\u0300", False), (" x", " x", True)]),
    ],
)
def test_differences_are_whole_words(left: str, right: str, segments: list[tuple[str, str, bool]]) -> None:
    assert word_segments(left, right) == [Segment(*each[:2], same=each[2]) for each in segments]


def test_a_long_difference_is_one() -> None:
    left, right = "a " * MAX_DIFF_WORDS + "x end", "b " * MAX_DIFF_WORDS + "y end"
    assert [segment.same for segment in word_segments(left, right)] == [False, True]


@given(WORDS, WORDS)
def test_the_segments_are_the_texts(left: str, right: str) -> None:
    segments = word_segments(left, right)
    assert "".join(segment.left for segment in segments) == left
    assert "".join(segment.right for segment in segments) == right
    assert all((segment.left == segment.right) == segment.same for segment in segments)

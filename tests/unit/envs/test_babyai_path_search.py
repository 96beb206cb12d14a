"""The path search of BabyAI against a literal one that keeps every entry of its queue."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runner.envs.babyai.path_search import FORWARD, LEFT, RIGHT, Cell, PathSearch
from tests.support.examples import examples

DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
VIEW = [(ahead, right) for ahead in range(7) for right in range(-3, 4)]
MAX_ENTRIES = 30_000
"""The literal search repeats entries, so open areas would take it exponentially long."""

Pose = tuple[int, int, int]


def search_area(heading: int) -> set[Cell]:
    """Return the cells between two opposite corners of the view, computed in world coordinates as AgentGym does."""
    forward, right = [((1, 0), (0, 1), (-1, 0), (0, -1))[turn % 4] for turn in (heading, heading + 1)]
    corner = [6 * forward[axis] - 3 * right[axis] for axis in (0, 1)]
    step = [7 * (right[axis] - forward[axis]) for axis in (0, 1)]
    ranges = [
        range(first + span, first + 1) if span < 0 else range(first, first + span)
        for first, span in zip(corner, step, strict=True)
    ]
    return {(x * forward[0] + y * forward[1], x * right[0] + y * right[1]) for x in ranges[0] for y in ranges[1]}


def literal_path(obstacles: set[Cell], heading: int, target: Cell, *, enters: bool) -> list[int] | None:
    """Search with a queue whose poses are visited when they are taken from it, and expanded each time."""
    free = search_area(heading) - obstacles | {(0, 0)}
    start: Pose = (0, 0, 0)
    queue: deque[Pose] = deque([start])
    visited: set[Pose] = set()
    predecessors: dict[Pose, tuple[Pose, int]] = {}
    for _ in range(MAX_ENTRIES):
        if not queue:
            return None
        pose = queue.popleft()
        visited.add(pose)
        if ((pose[0], pose[1]) if enters else ahead_of(pose)) == target:
            return trace(predecessors, start, pose)
        turns = [(pose[0], pose[1], (pose[2] + turn) % 4) for turn in (-1, 1)]
        for move, neighbor in zip((FORWARD, LEFT, RIGHT), [(*ahead_of(pose), pose[2]), *turns], strict=True):
            if neighbor not in visited and neighbor[:2] in free:
                predecessors[neighbor] = (pose, move)
                queue.append(neighbor)
    assume(False)
    raise AssertionError("unreachable")


def ahead_of(pose: Pose) -> Cell:
    return pose[0] + DIRECTIONS[pose[2]][0], pose[1] + DIRECTIONS[pose[2]][1]


def trace(predecessors: dict[Pose, tuple[Pose, int]], start: Pose, pose: Pose) -> list[int]:
    moves = []
    while pose != start:
        pose, move = predecessors[pose]
        moves.append(move)
    return moves[::-1]


@pytest.mark.parametrize(("heading", "n_rows", "n_columns"), [(0, 8, 7), (1, 8, 8), (2, 7, 8), (3, 7, 7)])
def test_the_search_area_depends_on_the_heading(heading: int, n_rows: int, n_columns: int) -> None:
    area = search_area(heading)
    assert len(area) == n_rows * n_columns
    search = PathSearch([], heading)
    around = [(ahead, right) for ahead in range(-1, 7) for right in range(-3, 5)]
    assert {cell for cell in around if search.can_enter(cell)} == area


@settings(max_examples=examples(200), deadline=None)
@given(
    obstacles=st.sets(st.sampled_from([cell for cell in VIEW if cell != (0, 0)]), min_size=22, max_size=40),
    heading=st.integers(0, 3),
    target=st.sampled_from([cell for cell in VIEW if cell != (0, 0)]),
    enters=st.booleans(),
)
def test_each_path_equals_that_of_the_literal_search(
    obstacles: set[Cell], heading: int, target: Cell, enters: bool
) -> None:
    search = PathSearch(obstacles, heading)
    is_reachable = search.can_enter(target) if enters else search.can_face(target)
    path = (search.path_to_enter if enters else search.path_to_face)(target) if is_reachable else None
    assert path == literal_path(obstacles, heading, target, enters=enters)


def test_one_search_serves_all_targets_in_any_order() -> None:
    walls = [(2, right) for right in range(-3, 3)]
    targets = [(6, -3), (1, 0), (4, 2), (0, 1)]
    once = {target: PathSearch(walls, 0).path_to_face(target) for target in targets}
    search = PathSearch(walls, 0)
    assert {target: search.path_to_face(target) for target in reversed(targets)} == once

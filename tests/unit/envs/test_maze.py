from __future__ import annotations

import pytest

from runner.envs.maze import GRID, STARTS, Maze
from runner.errors import EnvironmentFault
from runner.types import Action, InvalidAction, Mode

MODES: tuple[Mode, ...] = ("strict", "compat")


def step_text(maze: Maze, text: str) -> tuple[str, float, bool]:
    chat, reward, done = maze.step(Action(text=text))
    return chat[0]["content"] or "", reward, done


def start_env(task_index: int = 0, mode: Mode = "strict") -> Maze:
    maze = Maze(mode=mode)
    maze.reset(task_index=task_index)
    return maze


@pytest.mark.parametrize(
    ("task_index", "position", "walls"),
    [
        (0, "1, 1", "There are walls to your left, above you, below you."),
        (2, "1, 3", "There is a wall above you."),
        (8, "1, 10", "There are walls above you, below you."),
        (10, "2, 3", "There are walls to your right, to your left."),
        (21, "5, 9", "There are walls to your right, below you."),
        (24, "2, 9", "There are walls to your right, to your left."),
    ],
)
def test_each_task_has_a_distinct_start(task_index: int, position: str, walls: str) -> None:
    observation = Maze().reset(task_index=task_index)[0]["content"]
    assert observation == f"The goal is at position 8, 6. Your current position is at position {position}. {walls}"


def test_every_free_cell_except_the_goal_is_a_start() -> None:
    free = {(row, column) for row, line in enumerate(GRID) for column, cell in enumerate(line) if cell == "."}
    assert set(STARTS) == free - {(8, 6)}
    assert Maze().n_tasks == len(STARTS) == 25


def test_a_move_changes_the_position_unless_a_wall_blocks_it() -> None:
    maze = start_env(2)
    positions = []
    for move in ("move up", "move right", "move left", "move down", "move left"):
        assert step_text(maze, move)[1:] == (0.0, False)
        positions.append(maze.position)
    assert positions == [(1, 3), (1, 4), (1, 3), (2, 3), (2, 3)]


def test_the_goal_ends_the_episode_with_reward_1() -> None:
    maze = start_env(18)
    assert step_text(maze, "move down") == ("Success\n", 1.0, True)
    assert not maze.truncated
    with pytest.raises(EnvironmentFault, match="call reset first"):
        step_text(maze, "move down")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filler", ["move left", "nonsense"])
def test_the_51st_step_fails_and_counts_as_truncated(mode: Mode, filler: str) -> None:
    maze = start_env(0, mode)
    for _ in range(50):
        assert step_text(maze, filler)[1:] == (0.0, False)
    before = maze.truncated
    assert step_text(maze, "move right") == ("Failure\n", -1.0, True)
    after = maze.truncated
    maze.reset(task_index=0)
    assert (before, after, maze.truncated) == (False, True, False)


def test_the_50th_step_may_still_reach_the_goal() -> None:
    maze = start_env(18)
    for _ in range(49):
        step_text(maze, "wait")
    assert step_text(maze, "move down") == ("Success\n", 1.0, True)


@pytest.mark.parametrize(
    "text", ["Move Right", "move  right", "right", "move right now", "", "MOVE RIGHT", "move\nright"]
)
def test_only_exact_lower_case_texts_are_moves(text: str) -> None:
    for mode in MODES:
        maze = start_env(0, mode)
        assert isinstance(maze.parse(text), InvalidAction)
        step_text(maze, text)
        assert maze.position == (1, 1)


def test_surrounding_white_space_is_ignored_in_strict_and_invalid_in_compat() -> None:
    strict, compat = start_env(), start_env(mode="compat")
    for maze in (strict, compat):
        step_text(maze, "move right\n")
    assert strict.position == (1, 2)
    assert compat.position == (1, 1)
    assert isinstance(strict.parse("move right\n"), Action)
    assert isinstance(compat.parse("move right\n"), InvalidAction)


def test_all_four_moves_are_admissible_everywhere() -> None:
    assert start_env().admissible_actions() == ["move left", "move right", "move up", "move down"]


def test_the_oracle_reaches_the_goal_within_12_moves() -> None:
    for task_index in range(25):
        maze, n_moves, done, reward = start_env(task_index), 0, False, 0.0
        oracle = maze.oracle(None)
        while not done:
            _, reward, done = step_text(maze, oracle.next_action())
            n_moves += 1
        assert n_moves <= 12 and reward == 1.0, task_index

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.errors import ConfigError
from runner.results.comparison import Comparison, compare
from runner.results.statistics import pass_at_k, pass_hat_k
from runner.results.summary import Selection, summarize_results
from runner.results.task_matrix import TaskMatrix, task_matrices
from runner.store import EpisodeIndex
from runner.types import EpisodeEnded, EvaluatedTrajectory, Outcome
from tests.support.episodes import RecordedEpisode, make_step, make_trajectory

WON, LOST, LIMIT, FAULT = Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED, Outcome.ERROR
OLD, NEW = "01J00000000000000000000001", "01J00000000000000000000002"


def play(
    index: EpisodeIndex, outcomes: dict[int, list[Outcome]], batch: str = OLD, agent: str = "react", shape: str = ""
) -> None:
    for task, attempts in outcomes.items():
        for attempt, outcome in enumerate(attempts):
            fields: dict[str, Any] = {
                "batch_id": batch,
                "task_index": task,
                "attempt": attempt,
                "agent": agent,
                "model": "small",
            }
            recording = RecordedEpisode(index._store, index, **fields)
            recording.record_episode(1, shape=shape, outcome=outcome, success=outcome is WON)


def compared(index: EpisodeIndex) -> Comparison:
    return compare(task_matrices(index, Selection(batch=NEW)), task_matrices(index, Selection(batch=OLD)))


def only_matrix(index: EpisodeIndex) -> TaskMatrix:
    (matrix,) = task_matrices(index)
    return matrix


def test_a_matrix_has_the_attempts_of_each_task_in_the_order_of_their_starts(index: EpisodeIndex) -> None:
    play(index, {3: [LOST, WON], 0: [WON]})
    matrix = only_matrix(index)
    attempts = [(group.task_index, [attempt.outcome for attempt in group.attempts]) for group in matrix.tasks]
    assert attempts == [(0, [WON]), (3, [LOST, WON])]
    assert (matrix.agent, matrix.model) == ("react", "small")


def test_estimates_are_means_over_the_tasks_with_enough_rated_attempts(index: EpisodeIndex) -> None:
    play(index, {0: [WON, LOST, LOST], 1: [WON, WON, FAULT], 2: [LOST]})
    by_k = {estimate.k: estimate for estimate in only_matrix(index).estimates}
    assert [(k, estimate.n_tasks) for k, estimate in by_k.items()] == [(1, 3), (2, 2), (3, 1)]
    assert by_k[2].pass_at_k == pytest.approx((pass_at_k(1, 3, 2) + 1) / 2)
    assert by_k[2].pass_hat_k == pytest.approx((pass_hat_k(1, 3, 2) + 1) / 2)


def test_groups_without_information_are_marked(index: EpisodeIndex) -> None:
    play(index, {0: [LIMIT, LIMIT], 1: [LOST, FAULT], 2: [LIMIT, FAULT], 3: [FAULT, FAULT]})
    marks = [(group.zero_variance, group.all_truncated) for group in only_matrix(index).tasks]
    assert marks == [(True, True), (False, False), (False, True), (False, False)]


def test_agents_and_shapes_of_requests_are_never_mixed(index: EpisodeIndex) -> None:
    play(index, {0: [WON]})
    play(index, {0: [LOST]}, agent="tools")
    play(index, {0: [LOST]}, agent="tools", shape="tools as text")
    found = [(each.agent, each.shape, each.tasks[0].n_success, each.tasks[0].attempts) for each in task_matrices(index)]
    assert [(*names, len(attempts)) for *names, attempts in found] == [
        ("react", "", 1, 1),
        ("tools", "", 0, 1),
        ("tools", "tools as text", 0, 1),
    ]
    assert [each.agent for each in task_matrices(index, Selection(agent="tools"))] == ["tools"] * 2
    assert [each.shape for each in task_matrices(index, Selection(shape=""))] == [""] * 2


def test_tasks_are_compared_in_pairs(index: EpisodeIndex) -> None:
    play(index, {0: [WON], 1: [LOST], 2: [WON, LOST], 3: [FAULT], 4: [WON]})
    play(index, {0: [LOST], 1: [WON], 2: [LOST, WON], 3: [WON], 5: [WON]}, batch=NEW)
    comparison = compared(index)
    assert [pair.task.task_index for pair in comparison.won] == [1]
    assert [pair.task.task_index for pair in comparison.lost] == [0]
    assert [pair.task.task_index for pair in comparison.tied] == [2]
    assert (comparison.n_tied, comparison.n_unpaired, comparison.p_value) == (1, 3, 1.0)
    assert (comparison.success_rate, comparison.baseline_rate) == (0.5, 0.5)
    assert (comparison.is_worse, comparison.shape_note) == (False, "")


def test_a_selection_that_loses_many_tasks_is_worse_than_chance(index: EpisodeIndex) -> None:
    play(index, {task: [WON] for task in range(6)})
    play(index, {task: [LOST] for task in range(6)}, batch=NEW)
    comparison = compared(index)
    assert comparison.is_worse
    assert comparison.p_value == pytest.approx(2 / 2**6)


def test_selections_of_different_shapes_are_compared_and_the_comparison_says_so(index: EpisodeIndex) -> None:
    play(index, {0: [WON], 1: [WON]})
    play(index, {0: [LOST]}, batch=NEW, shape="tools as text")
    play(index, {0: [WON], 1: [WON]}, batch=NEW, shape="folded system")
    play(index, {2: [WON]}, batch=NEW)
    found = compared(index)
    assert [(pair.task.task_index, pair.rate) for pair in found.lost] == [(0, 0.5)]
    assert (found.n_paired, found.shapes, found.baseline_shapes) == (2, ["folded system", "tools as text"], [""])
    assert found.shape_note == "requests differ: selection folded system and tools as text, the other as usual"


def test_a_selection_of_two_agents_cannot_be_compared(index: EpisodeIndex) -> None:
    play(index, {0: [WON]}, batch=NEW)
    play(index, {0: [WON]}, batch=NEW, agent="tools")
    with pytest.raises(ConfigError, match=r"react small and tools small in .* choose with --agent or --model"):
        compared(index)


def test_an_unscored_attempt_is_in_no_rate(index: EpisodeIndex) -> None:
    play(index, {0: [WON]})
    idle = RecordedEpisode(index._store, index, batch_id=OLD, task_index=0, attempt=1, agent="react", model="small")
    idle.start()
    ended = msgspec.structs.asdict(make_trajectory(idle.header, [make_step(0)]))
    idle.send(EpisodeEnded, trajectory=EvaluatedTrajectory(**ended, evaluation={"rated": False}))
    (group,) = only_matrix(index).tasks
    assert [attempt.rated for attempt in group.attempts] == [True, False]
    assert [(estimate.k, estimate.pass_at_k) for estimate in only_matrix(index).estimates] == [(1, 1.0)]
    (result,) = summarize_results(index)
    assert (result.n, result.n_rated, result.n_unscored, result.success_rate) == (2, 1, 1, 1.0)

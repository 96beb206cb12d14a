"""Sessions with stored episodes of several models and batches, for tests of the Results screen."""

from __future__ import annotations

from typing import Final

from runner.store.index_schema import EpisodeRow
from runner.types import Outcome
from tests.support.console.fake_session import FakeSession, empty_session
from tests.support.console.samples import batch_id, row

N_TASKS, N_ATTEMPTS = 12, 4
OLD, NEW, OTHER, BASELINE, MAZE = (batch_id(number) for number in range(5))
"""Two batches of a model, one of another model, one of the oracle, and one of another environment."""

_WON, _LOST, _LIMIT, _FAULT = Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED, Outcome.ERROR
_BATCHES: Final = (
    (OLD, "Wordle", "react", "qwen35_9b", "-+t-"),
    (NEW, "Wordle", "react", "qwen35_9b", "+++-"),
    (OTHER, "Wordle", "react", "llama4-scout", "tt+E"),
    (BASELINE, "Wordle", "oracle", None, "++++"),
    (MAZE, "Maze", "tools", "qwen35_9b", "+-E+"),
)
_OUTCOMES: Final = {"+": _WON, "-": _LOST, "t": _LIMIT, "E": _FAULT}


_FAILURES: Final = {
    _LOST: "wrong: guess … -> You have lost",
    _LIMIT: "limit: truncated",
    _FAULT: "error: EnvironmentFault the server is gone",
}


def results_session() -> FakeSession:
    """Five batches, each with several attempts of each task; costs are in USD."""
    session = empty_session()
    session.store.currency = "USD"
    session.fake_library.stored = [episode for number in range(len(_BATCHES)) for episode in batch_rows(number)]
    return session


def batch_rows(number: int) -> list[EpisodeRow]:
    """Return the episodes of a batch, in the order of their starts."""
    batch, env, agent, model, signs = _BATCHES[number]
    rows = []
    for index in range(N_TASKS * N_ATTEMPTS):
        task, attempt = index % N_TASKS, index // N_TASKS
        outcome = _OUTCOMES[signs[(task * task + attempt) % len(signs)] if model and task else signs[0]]
        rows.append(
            row(
                number * 100 + index,
                batch_id=batch,
                env=env,
                agent=agent,
                model=model,
                task_index=task,
                attempt=attempt,
                outcome=outcome,
                failure=_FAILURES.get(outcome),
                failed_step=None if outcome is _WON else 2,
                success=outcome is _WON,
                reward=1.0 if outcome is _WON else 0.125 * (task % 4),
                tokens_prompt=1_200 if model else 0,
                tokens_completion=90 if model else 0,
                cost=0.0000123 * (task + 1) if model else None,
                model_s=2.5 if model else None,
            )
        )
    return rows

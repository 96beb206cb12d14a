"""The end of an episode: its verdict, and what its environment and agent give back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from runner.episode.validation import check_details, check_flow, settle
from runner.errors import boundary, log_failure
from runner.types import (
    Agent,
    Environment,
    EvaluatedTrajectory,
    Outcome,
    SupportsCleanup,
    SupportsClose,
    SupportsEvaluation,
    SupportsFlow,
    SupportsTruncation,
    Trajectory,
)

logger = logging.getLogger(__name__)

CLEANUP_S = 5.0
"""Seconds an async ``cleanup`` and ``close`` may take."""


async def judge(
    environment: Environment, trajectory: Trajectory, on_error: Callable[[BaseException], None]
) -> Trajectory:
    """Ask whether the episode succeeded; returns it, with details where the environment has any."""
    with boundary(on_error):
        trajectory.success = bool(await settle(environment.success(trajectory)))
        trajectory.outcome = _outcome(environment, trajectory)
    with boundary(log_failure(logger, "get_evaluation_details")):
        if isinstance(environment, SupportsEvaluation):
            details = check_details(await settle(environment.get_evaluation_details()))
            return EvaluatedTrajectory(**msgspec.structs.asdict(trajectory), evaluation=details)
    return trajectory


def last_flow(agent: Agent) -> int | None:
    """The flow of the agent's newest response, None where it has none that can be used."""
    with boundary(log_failure(logger, "last_response_flow_id")):
        if isinstance(agent, SupportsFlow):
            return check_flow(agent.last_response_flow_id)
    return None


async def give_back(environment: Environment | None, agent: Agent | None) -> None:
    """Let both give back what they hold, at the same time and for at most ``CLEANUP_S`` seconds.

    A cancellation in the meantime is raised afterwards.
    """
    clock = asyncio.get_running_loop().time
    ends_at = clock() + CLEANUP_S
    working = {
        asyncio.create_task(_cleanup(environment), name="cleanup"),
        asyncio.create_task(_close(agent), name="close"),
    }
    cancelled: asyncio.CancelledError | None = None
    while working and (left_s := ends_at - clock()) > 0:
        try:
            _, working = await asyncio.wait(working, timeout=left_s)
        except asyncio.CancelledError as exc:
            cancelled = exc
    for work in working:
        if work.cancel():
            logger.warning("%s failed: it did not end within %g s", work.get_name(), CLEANUP_S)
    if cancelled is not None:
        raise cancelled


async def _cleanup(environment: Environment | None) -> None:
    with boundary(log_failure(logger, "cleanup")):
        if environment is not None and isinstance(environment, SupportsCleanup):
            await settle(environment.cleanup())


async def _close(agent: Agent | None) -> None:
    with boundary(log_failure(logger, "close")):
        if agent is not None and isinstance(agent, SupportsClose):
            await settle(agent.close())


def _outcome(environment: Environment, trajectory: Trajectory) -> Outcome:
    if trajectory.outcome in (Outcome.TIMEOUT, Outcome.CANCELLED, Outcome.INTERRUPTED):
        return trajectory.outcome
    if trajectory.success:
        return Outcome.SUCCESS
    own_limit = isinstance(environment, SupportsTruncation) and environment.truncated
    return Outcome.TRUNCATED if own_limit else trajectory.outcome

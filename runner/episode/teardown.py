"""The end of an episode: evaluation, then cleanup of the environment and the agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from runner.episode.validation import check_details, check_flow_id
from runner.errors import EvaluationFault, catch_foreign, log_failure
from runner.types import (
    Agent,
    AREEvaluatedTrajectory,
    Environment,
    EvaluatedTrajectory,
    Outcome,
    SupportsCleanup,
    SupportsClose,
    SupportsEvaluation,
    SupportsSuccess,
    Trajectory,
)
from runner.types.protocols import CallMethod, call_here, maybe_await, optional_method

logger = logging.getLogger(__name__)

ARE_CLASS = "AREEnvironment"
CLEANUP_TIMEOUT_S = 5.0
"""Maximum seconds for the environment's ``cleanup`` and the agent's ``close``, if async; they run concurrently."""


async def rate(
    environment: Environment,
    trajectory: Trajectory,
    on_error: Callable[[BaseException], None] | None,
    call: CallMethod = call_here,
) -> None:
    """By the environment's rule, else by rewards; ``on_error`` gets an error of ``success``, or it is only logged."""
    with catch_foreign(on_error or log_failure(logger, "success")):
        success = optional_method(environment, SupportsSuccess.success)
        by_rewards = any((step.reward or 0.0) > 0 for step in trajectory.timesteps)
        trajectory.success = by_rewards if success is None else bool(await call(success, trajectory))
        trajectory.outcome = _outcome(environment, trajectory)


async def evaluate(
    environment: Environment,
    trajectory: Trajectory,
    on_error: Callable[[BaseException], None],
    call: CallMethod = call_here,
) -> Trajectory:
    """Return a trajectory with the environment's evaluation details, if any.

    The result is an ``AREEvaluatedTrajectory`` if the environment's class is named ``AREEnvironment``, whichever
    package it is from. Such an environment may return None, and the trajectory is then returned as it is; ``success``
    None in its details is an error of the evaluation, and no failure of the agent.

    ``on_error`` receives a missing verdict; an error of ``get_evaluation_details`` is only logged.
    """
    with catch_foreign(log_failure(logger, "get_evaluation_details")):
        if (get_details := optional_method(environment, SupportsEvaluation.get_evaluation_details)) is not None:
            details = await call(get_details)
            return _evaluated(environment, trajectory, details, on_error)
    return trajectory


def _evaluated(
    environment: Environment,
    trajectory: Trajectory,
    found: dict[str, Any] | None,
    on_error: Callable[[BaseException], None],
) -> Trajectory:
    if type(environment).__name__ != ARE_CLASS:
        return EvaluatedTrajectory(**msgspec.structs.asdict(trajectory), evaluation=check_details(found))
    if found is None:
        return trajectory
    details = check_details(found)
    if details.get("success", False) is None:
        reason = details.get("exception") or details.get("rationale") or "no reason given"
        on_error(EvaluationFault(f"The validation of the episode has no verdict: {reason}"))
    return AREEvaluatedTrajectory(**msgspec.structs.asdict(trajectory), evaluation=details)


def last_response_flow(agent: Agent) -> int | None:
    with catch_foreign(log_failure(logger, "last_response_flow_id")):
        flow_id = getattr(agent, "_trace_last_response_flow_id", None)
        return check_flow_id(getattr(agent, "last_response_flow_id", None) if flow_id is None else flow_id)
    return None


async def release(
    environment: Environment | None,
    agent: Agent | None,
    *,
    timeout_s: float = CLEANUP_TIMEOUT_S,
    call: CallMethod = call_here,
) -> None:
    """Call the environment's ``cleanup`` and the agent's ``close`` concurrently, for at most ``timeout_s`` seconds.

    Their errors are logged. A cancellation in the meantime is raised when both have ended or the time is over.
    """
    clock = asyncio.get_running_loop().time
    ends_at = clock() + timeout_s
    unfinished = {
        asyncio.create_task(_cleanup(environment, call), name="cleanup"),
        asyncio.create_task(_close(agent), name="close"),
    }
    cancelled: asyncio.CancelledError | None = None
    while unfinished and (remaining_s := ends_at - clock()) > 0:
        try:
            _, unfinished = await asyncio.wait(unfinished, timeout=remaining_s)
        except asyncio.CancelledError as exc:
            cancelled = exc
    for task in unfinished:
        if task.cancel():
            logger.warning("%s did not end within %g s", task.get_name(), timeout_s)
    if cancelled is not None:
        raise cancelled


async def _cleanup(environment: Environment | None, call: CallMethod) -> None:
    with catch_foreign(log_failure(logger, "cleanup")):
        if (cleanup := optional_method(environment, SupportsCleanup.cleanup)) is not None:
            await call(cleanup)


async def _close(agent: Agent | None) -> None:
    with catch_foreign(log_failure(logger, "close")):
        if (close := optional_method(agent, SupportsClose.close)) is not None:
            await maybe_await(close())


def _outcome(environment: Environment, trajectory: Trajectory) -> Outcome:
    if trajectory.outcome in (Outcome.TIMEOUT, Outcome.CANCELLED, Outcome.INTERRUPTED):
        return trajectory.outcome
    if trajectory.success:
        return Outcome.SUCCESS
    return Outcome.TRUNCATED if getattr(environment, "truncated", False) else trajectory.outcome

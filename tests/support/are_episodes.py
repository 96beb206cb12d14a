"""Hand-made episodes of the kind that ARE's environment records: tagged messages and evaluation details."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore
from runner.types import Action, Chat, EpisodeHeader, ErrorInfo, EvaluatedTrajectory, Outcome, TimeStep, ToolCall
from tests.support.episodes import START, finished_record, new_id, tool_schemas

EMAIL: Final = "EmailClientApp__forward_email"
TASK: Final = "Hey Assistant, can you take care of transferring the pdf Greg will send me to John?"

EVENTS: Final[list[dict[str, Any]]] = [
    {"time": 5.0, "type": "ENV", "app": "MessagingApp", "function": "add_message", "args": {"sender": "John Doe"}},
    {"time": 6.0, "type": "USER", "app": "AgentUserInterface", "function": "send_message_to_agent", "args": {}},
    {"time": 16, "type": "ENV", "app": "EmailClientApp", "function": "send_email_to_user", "args": {"email": "greg"}},
    {
        **{"time": 17.5, "type": "AGENT", "app": "EmailClientApp", "function": "forward_email"},
        **{"args": {"email_id": "greg_email", "recipients": ["johndoe@example.com"]}, "error": "no such email"},
    },
]

DETAILS: Final[dict[str, Any]] = {
    **{"success": True, "rationale": None, "exception": None, "judge": "scenario", "rated": True},
    **{"n_oracle_events": 1, "events": EVENTS, "events_dropped": 0, "missed": [], "duration": 0.081},
    **{"simulated_s": 20.0, "scenario": "scenario_tutorial", "memory_mib": 246, "memory_limit_mib": 1024},
}
"""Evaluation details of a solved scenario."""

MISSED: Final = {
    **DETAILS,
    "success": False,
    "missed": [
        {
            **{"app": "EmailClientApp", "function": "forward_email", "args": {"email_id": "greg_email"}},
            "reason": "no forward_email was called",
        }
    ],
}
JUDGE_FAILED: Final = {**DETAILS, "success": None, "exception": "KeyError: 'greg_email'"}
IDLE: Final = {
    **DETAILS,
    "rated": False,
    "n_oracle_events": 0,
    "scenario": "scenario_validation_tutorial",
    "events": [],
}


def evaluation_fault() -> ErrorInfo:
    return ErrorInfo(
        "evaluation",
        "The validation of scenario_tutorial has no verdict: KeyError: 'greg_email'",
        "",
        category="evaluation",
    )


def are_steps() -> list[TimeStep]:
    """Two steps: a wait that brings the user's message and a notification, then a call that answers an error."""
    first: Chat = [
        {"role": "tool", "content": "[result] waited", "tool_call_id": "c0"},
        {"role": "user", "content": f"[user] {TASK}"},
        {"role": "user", "content": "[notification] MessagingApp: new message from John Doe"},
        {"role": "user", "content": "[environment] simulated time 6 s"},
    ]
    second: Chat = [
        {"role": "tool", "content": "[error] no such email: greg_email", "tool_call_id": "c1"},
        {"role": "user", "content": "[environment] simulated time 7 s"},
    ]
    schemas = tool_schemas("SystemApp__wait_for_notification", EMAIL)
    calls = [
        ToolCall("c0", "SystemApp__wait_for_notification", '{"timeout": 6}'),
        ToolCall("c1", EMAIL, '{"email_id": "greg_email", "recipients": ["johndoe@example.com"]}'),
    ]
    return [
        TimeStep(
            index=index,
            chats=[],
            action=Action(None, [calls[index]]),
            observation=observation,
            reward=0.0,
            done=index == 1,
            available_tool_schemas=schemas,
            env_s=0.01,
        )
        for index, observation in enumerate((first, second))
    ]


def are_record(evaluation: dict[str, Any] = DETAILS, **fields: Any) -> EpisodeRecord:  # noqa: ANN401
    """Return an episode whose outcome follows from its evaluation; ``fields``: of the header."""
    known = {"episode_id": new_id(), "batch_id": new_id(), "env": "are:scenario_tutorial", "agent": "react"}
    header = EpisodeHeader(**{**known, "model": "qwen35_9b", "node": "lab", "started_at": START, **fields})
    success = evaluation["success"]
    outcome = Outcome.ERROR if success is None else Outcome.SUCCESS if success else Outcome.FAILURE
    trajectory = EvaluatedTrajectory(
        episode_id=header.episode_id,
        timesteps=are_steps(),
        reset_observation=[{"role": "user", "content": "[environment] simulated time 0 s"}],
        outcome=outcome,
        success=bool(success),
        duration_s=0.4,
        error_info=evaluation_fault() if success is None else None,
        evaluation=evaluation,
    )
    return finished_record(header, trajectory, ended_at=START + timedelta(seconds=1))


def store_records(index: EpisodeIndex, store: EpisodeStore, *records: EpisodeRecord) -> None:
    for record in records:
        store.save(record)
        index.insert(record)

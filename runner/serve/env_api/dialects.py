"""The requests and replies of each AgentGym server, one table row each.

Measured on WooooDyy/AgentGym 3ef9235, ``agentenv-*/agentenv_*/server.py`` and ``environment.py`` or ``env_wrapper.py``
of each environment; ``docs/serving.md`` lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from runner.serve.env_api.pool import PoolRejected
from runner.serve.env_api.reply_fields import (
    BARE_OBSERVATION,
    CLICKABLES,
    DELETED,
    DONE,
    HAS_SEARCH_BAR,
    INSTANCE_ID,
    INSTRUCTION,
    OBSERVATION,
    REWARD,
    SCORE,
    TASK_NUMBER,
    TASK_TYPE,
    FieldGetter,
    ReplyTemplate,
    available_actions,
    constant,
    observation_pair,
    observation_with_goal,
)
from runner.serve.env_api.request_fields import RequestField


def babyai_task_index(task_number: int, n_tasks: int) -> int:
    """Return the task of AgentGym's BabyAI server: level ``n % 40 + 1``, seed ``n // 40``, which is not negative."""
    if task_number < 0:
        raise PoolRejected(f"Seed must be greater or equal to zero, actual value: {task_number // 40}")
    return task_number % n_tasks


def maze_task_index(task_number: int, n_tasks: int) -> int:
    """Return the task of AgentGym's Maze server, a Python list index into the starts; its last entry is the goal."""
    n_starts = n_tasks + 1
    if not -n_starts <= task_number < n_starts:
        raise PoolRejected(f"The game {task_number} is not valid.")
    if task_number % n_starts == n_tasks:
        raise PoolRejected("")
    return task_number % n_starts


def wordle_task_index(task_number: int, n_tasks: int) -> int:
    """Return the task of AgentGym's Wordle server: ``random.seed`` ignores the sign of an integer."""
    return abs(task_number) % n_tasks


def list_task_index(task_number: int, n_tasks: int) -> int:
    """Return the task of a server that rejects numbers outside its list, such as SQLGym's and WebShop's."""
    if not 0 <= task_number < n_tasks:
        raise PoolRejected(f"Task {task_number} is out of range: there are {n_tasks} tasks, counted from 0")
    return task_number


class ReadRoute(msgspec.Struct, frozen=True):
    """A GET route that reads an instance.

    Attributes:
        reply_before_reset: reply before the first reset; None: an error.
        error_before_reset: text of that error on AgentGym's server; None: the id.
    """

    path: str
    reply: ReplyTemplate
    reply_before_reset: ReplyTemplate | None = None
    error_before_reset: str | None = None


class ServerDialect(msgspec.Struct, frozen=True, kw_only=True):
    """The protocol of one server.

    Attributes:
        task_field: field of ``reset`` with the task number.
        create_reply: reply to ``create``.
        reset_reply: reply to ``reset``.
        step_reply: reply to ``step``; ``truncated`` is added to it.
        prefix: prefix of all its paths.
        id_field: field with the id of an instance.
        reset_options: additional fields of ``reset``.
        create_starts_task: whether ``create`` requires a JSON object and starts task 0.
        read_routes: routes that read an instance.
        action_list_paths: paths of the list of actions, where it is the same for all instances.
        lists_instances: whether ``/list_envs`` lists the open instances.
        text_errors: whether errors are plain text with status 500; else objects with status 200.
        final_when_done: whether every request except ``reset`` fails after the end of a task.
        task_index_of: maps a task number and the number of tasks to a task index, in compat mode.
    """

    task_field: RequestField
    create_reply: ReplyTemplate
    reset_reply: ReplyTemplate
    step_reply: Mapping[str, FieldGetter]
    prefix: str = ""
    id_field: str = "id"
    reset_options: tuple[RequestField, ...] = ()
    create_starts_task: bool = False
    read_routes: tuple[ReadRoute, ...] = ()
    action_list_paths: tuple[str, ...] = ()
    lists_instances: bool = False
    text_errors: bool = False
    final_when_done: bool = True
    task_index_of: Callable[[int, int], int] = lambda task_number, n_tasks: task_number % n_tasks


_STEP_REPLY: Mapping[str, FieldGetter] = {"observation": OBSERVATION, "reward": REWARD, "done": DONE}
_STATE_REPLY = {"observation": OBSERVATION, "reward": REWARD, "score": SCORE, "done": DONE}
_ID_REPLY: Mapping[str, FieldGetter] = {"id": INSTANCE_ID}
_TASK_REPLY: Mapping[str, FieldGetter] = {"id": INSTANCE_ID, "observation": OBSERVATION, "done": DONE, "reward": REWARD}
_OUTCOME: Mapping[str, FieldGetter] = {"done": DONE, "reward": REWARD, "deleted": DELETED}
_NOT_INITIALIZED = constant("Environment not initialized")
_NO_OBSERVATION = "'observation'"

DIALECTS: Mapping[str, ServerDialect] = {
    "BabyAI": ServerDialect(
        task_field=RequestField("data_idx"),
        create_reply=_ID_REPLY,
        reset_reply={**_STATE_REPLY, "deleted": DELETED},
        step_reply=_STATE_REPLY,
        read_routes=(
            ReadRoute(
                "/observation",
                {**_STATE_REPLY, "observation": observation_with_goal, "deleted": DELETED},
                reply_before_reset={**_STATE_REPLY, "observation": _NOT_INITIALIZED, "deleted": DELETED},
            ),
        ),
        task_index_of=babyai_task_index,
    ),
    "TextCraft": ServerDialect(
        task_field=RequestField("data_idx", required=False, default=0),
        create_starts_task=True,
        create_reply=_TASK_REPLY,
        reset_reply=_TASK_REPLY,
        step_reply=_STEP_REPLY,
        read_routes=(
            ReadRoute("/observation", OBSERVATION),
            ReadRoute("/detail", {"observation": OBSERVATION, **_OUTCOME}),
        ),
        final_when_done=False,
    ),
    "Maze": ServerDialect(
        prefix="/maze",
        task_field=RequestField("game"),
        create_reply=_ID_REPLY,
        reset_reply={"observation": OBSERVATION},
        step_reply=_STEP_REPLY,
        read_routes=(
            ReadRoute("/observation", OBSERVATION, error_before_reset=_NO_OBSERVATION),
            ReadRoute(
                "/detail",
                {"maze_name": constant("double_t_maze"), "observation": OBSERVATION, **_OUTCOME},
                error_before_reset="'goal_position'",
            ),
        ),
        action_list_paths=("/available_actions",),
        task_index_of=maze_task_index,
    ),
    "Wordle": ServerDialect(
        prefix="/wordle",
        task_field=RequestField("seed"),
        create_reply=_ID_REPLY,
        reset_reply={"id": INSTANCE_ID, "observation": OBSERVATION},
        step_reply=_STEP_REPLY,
        read_routes=(
            ReadRoute("/observation", OBSERVATION, error_before_reset=_NO_OBSERVATION),
            ReadRoute(
                "/detail", {**_OUTCOME, "observation": OBSERVATION, "seed": TASK_NUMBER}, reply_before_reset=_OUTCOME
            ),
        ),
        task_index_of=wordle_task_index,
    ),
    "ALFWorld": ServerDialect(
        task_field=RequestField("game"),
        reset_options=(RequestField("world_type", "string", choices=("Text", "Embody", "Hybrid")),),
        create_reply=_ID_REPLY,
        reset_reply={
            "id": INSTANCE_ID,
            "observation": BARE_OBSERVATION,
            "available_actions": available_actions,
            "task_type": TASK_TYPE,
        },
        step_reply={**_STEP_REPLY, "observation": BARE_OBSERVATION, "available_actions": available_actions},
        read_routes=(
            ReadRoute("/observation", BARE_OBSERVATION),
            ReadRoute("/available_actions", available_actions),
            ReadRoute(
                "/detail",
                {
                    "observation": BARE_OBSERVATION,
                    "available_actions": available_actions,
                    "task_type": TASK_TYPE,
                    **_OUTCOME,
                },
            ),
        ),
    ),
    "SQLGym": ServerDialect(
        id_field="env_idx",
        task_field=RequestField("item_id"),
        create_reply=INSTANCE_ID,
        reset_reply=observation_pair,
        # AgentGym's server sends the gold query in ``info``; ours never does.
        step_reply={"state": OBSERVATION, "reward": REWARD, "done": DONE, "info": constant({})},
        read_routes=(ReadRoute("/observation", OBSERVATION),),
        lists_instances=True,
        text_errors=True,
        final_when_done=False,
        task_index_of=list_task_index,
    ),
    "WebShop": ServerDialect(
        id_field="env_idx",
        task_field=RequestField("session_id"),
        create_reply=INSTANCE_ID,
        reset_reply=observation_pair,
        step_reply={"state": OBSERVATION, "reward": REWARD, "done": DONE, "info": constant(None)},
        read_routes=(
            ReadRoute("/observation", OBSERVATION),
            ReadRoute(
                "/available_actions",
                {
                    "has_search_bar": HAS_SEARCH_BAR,
                    "clickables": CLICKABLES,
                },
            ),
            ReadRoute("/instruction_text", INSTRUCTION),
        ),
        lists_instances=True,
        text_errors=True,
        final_when_done=False,
        task_index_of=list_task_index,
    ),
}
"""The dialects by registered name of the environment."""

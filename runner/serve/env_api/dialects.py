"""The requests and replies of each AgentGym server, as a table with one row per server.

The source is WooooDyy/AgentGym at commit 3ef9235: ``agentenv-*/agentenv_*/server.py`` and ``environment.py`` or
``env_wrapper.py`` of each environment. ``docs/serving.md`` lists where our servers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TypeAlias

import msgspec

from runner.serve.env_api.pool import PooledInstance, PoolRejected

FieldGetter: TypeAlias = Callable[[PooledInstance], object]
ReplyTemplate: TypeAlias = Mapping[str, FieldGetter] | FieldGetter
"""Template of a reply: a JSON object with a function for each member, or a function for a single value."""


def constant(value: object) -> FieldGetter:
    return lambda instance: value


INSTANCE_ID: FieldGetter = attrgetter("instance_id")
OBSERVATION: FieldGetter = attrgetter("observation")
REWARD: FieldGetter = attrgetter("reward")
DONE: FieldGetter = attrgetter("done")
TRUNCATED: FieldGetter = attrgetter("environment.truncated")

BARE_OBSERVATION: FieldGetter = attrgetter("environment.observation")
"""ALFWorld's observation without the list of actions, which is in a separate reply field."""
TASK_TYPE: FieldGetter = attrgetter("environment.task_type")
REMAINING_WORDS: FieldGetter = attrgetter("environment.remaining_words")


def shown_instruction(instance: PooledInstance) -> str:
    """Return the instruction of WebShop's task; on AgentGym's server, a label precedes it."""
    instruction = str(attrgetter("environment.instruction")(instance))
    return f"Instruction: {instruction}" if instance.environment.mode == "compat" else instruction


def available_actions(instance: PooledInstance) -> list[str]:
    return instance.environment.admissible_actions() or []


def observation_with_goal(instance: PooledInstance) -> str:
    """Return the task's first line (the goal) and below it the observation, like BabyAI's ``/observation``."""
    initial_observation = instance.initial_observation or ""
    if instance.observation == initial_observation:
        return initial_observation
    return f"{initial_observation.partition(chr(10))[0]}\n{instance.observation}"


def observation_pair(instance: PooledInstance) -> list[object]:
    """Return ``[observation, null]``, like ``/reset`` of SQLGym and WebShop."""
    return [instance.observation, None]


def render_reply(reply: ReplyTemplate, instance: PooledInstance) -> object:
    if isinstance(reply, Mapping):
        return {name: value(instance) for name, value in reply.items()}
    return reply(instance)


def babyai_task_index(task_number: int, n_tasks: int) -> int:
    """Return the task index for a task number n of AgentGym's BabyAI server: level ``n % 40 + 1``, seed ``n // 40``."""
    if task_number < 0:
        raise PoolRejected(f"Seed must be greater or equal to zero, actual value: {task_number // 40}")
    return task_number % n_tasks


def maze_task_index(task_number: int, n_tasks: int) -> int:
    """The number is a Python index, perhaps negative, into a list of start positions whose last entry is the goal."""
    n_starts = n_tasks + 1
    if not -n_starts <= task_number < n_starts:
        raise PoolRejected(f"The game {task_number} is not valid.")
    if task_number % n_starts == n_tasks:
        raise PoolRejected("")
    return task_number % n_starts


def wordle_task_index(task_number: int, n_tasks: int) -> int:
    """AgentGym's Wordle server ignores the sign of the number."""
    return abs(task_number) % n_tasks


def list_task_index(task_number: int, n_tasks: int) -> int:
    """SQLGym's server rejects numbers outside its task list, and so does WebShop's."""
    if not 0 <= task_number < n_tasks:
        raise PoolRejected(f"Task {task_number} is out of range: there are {n_tasks} tasks, counted from 0")
    return task_number


def session_task_index(task_number: int, n_tasks: int) -> int:
    """Return the task index for a session of WebShop; without one, -1, AgentGym's server chooses any goal."""
    return 0 if task_number == -1 else list_task_index(task_number, n_tasks)


class ReadRoute(msgspec.Struct, frozen=True):
    """A GET route that returns data of an instance.

    Attributes:
        reply_before_reset: reply before the first reset of the instance; None: an error.
        error_before_reset: text of the error before the first reset; None: the id of the instance.
    """

    path: str
    reply: ReplyTemplate
    reply_before_reset: ReplyTemplate | None = None
    error_before_reset: str | None = None


class ServerDialect(msgspec.Struct, frozen=True, kw_only=True):
    """The protocol of one AgentGym server.

    Attributes:
        task_default: task number of a request that has none; None: the request must have one.
        reset_options: further text fields of ``reset`` with their values.
        create_starts_task: whether ``create`` requires a JSON object and starts task 0.
        starts_itself: whether an instance can be used before its first reset; it then has the first task.
        action_list_paths: paths that return a list of actions which is the same for all instances.
        text_errors: whether errors are plain text with status 500; if not, they are JSON objects with status 200.
        final_when_done: whether, after the end of a task, every request except ``reset`` fails. If not, the instance
            can still be read, and in compat mode also be stepped.
        task_index_of: returns the task index for a task number and the number of tasks; used in compat mode.
    """

    task_field: str
    task_default: int | None = None
    create_reply: ReplyTemplate
    reset_reply: ReplyTemplate
    step_reply: Mapping[str, FieldGetter]
    prefix: str = ""
    id_field: str = "id"
    reset_options: Mapping[str, tuple[str, ...]] = {}
    create_starts_task: bool = False
    starts_itself: bool = False
    read_routes: tuple[ReadRoute, ...] = ()
    action_list_paths: tuple[str, ...] = ()
    lists_instances: bool = False
    text_errors: bool = False
    final_when_done: bool = True
    task_index_of: Callable[[int, int], int] = lambda task_number, n_tasks: task_number % n_tasks


_ID_REPLY: Mapping[str, FieldGetter] = {"id": INSTANCE_ID}
_STEP_REPLY: Mapping[str, FieldGetter] = {"observation": OBSERVATION, "reward": REWARD, "done": DONE}
_STATE_REPLY: Mapping[str, FieldGetter] = {**_STEP_REPLY, "score": attrgetter("score")}
_OUTCOME: Mapping[str, FieldGetter] = {"done": DONE, "reward": REWARD, "deleted": constant(False)}
_ALFWORLD_STEP = {**_STEP_REPLY, "observation": BARE_OBSERVATION, "available_actions": available_actions}
_ALFWORLD_STATE = {
    "observation": BARE_OBSERVATION,
    "available_actions": available_actions,
    "task_type": TASK_TYPE,
}
_NO_OBSERVATION = "'observation'"

CREATE_ENV = ServerDialect(
    id_field="env_id",
    task_field="task_index",
    create_reply={"env_id": INSTANCE_ID},
    reset_reply={},
    step_reply=_STEP_REPLY,
    read_routes=(ReadRoute("/observation", {"observation": OBSERVATION, "done": DONE}),),
    final_when_done=False,
)
"""The protocol of other field runners, beside AgentGym's; the first use of an instance starts the task.

So an instance whose task cannot be started has an id with which it can be closed. The client side of the protocol is
``create_env_dialect`` in ``runner/envs/http/dialects.py``.
"""

DIALECTS: Mapping[str, ServerDialect] = {
    "BabyAI": ServerDialect(
        task_field="data_idx",
        create_reply=_ID_REPLY,
        reset_reply={**_STATE_REPLY, **_OUTCOME},
        step_reply=_STATE_REPLY,
        read_routes=(
            ReadRoute(
                "/observation",
                {**_STATE_REPLY, **_OUTCOME, "observation": observation_with_goal},
                {**_STATE_REPLY, **_OUTCOME, "observation": constant("Environment not initialized")},
            ),
        ),
        task_index_of=babyai_task_index,
    ),
    "TextCraft": ServerDialect(
        task_field="data_idx",
        task_default=0,
        create_starts_task=True,
        create_reply={**_ID_REPLY, **_STEP_REPLY},
        reset_reply={**_ID_REPLY, **_STEP_REPLY},
        step_reply=_STEP_REPLY,
        read_routes=(
            ReadRoute("/observation", OBSERVATION),
            ReadRoute("/detail", {"observation": OBSERVATION, **_OUTCOME}),
        ),
        final_when_done=False,
    ),
    "Maze": ServerDialect(
        prefix="/maze",
        task_field="game",
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
        task_field="seed",
        create_reply=_ID_REPLY,
        reset_reply={**_ID_REPLY, "observation": OBSERVATION},
        step_reply=_STEP_REPLY,
        read_routes=(
            ReadRoute("/observation", OBSERVATION, error_before_reset=_NO_OBSERVATION),
            ReadRoute("/detail", {**_OUTCOME, "observation": OBSERVATION, "seed": attrgetter("task_number")}, _OUTCOME),
            # AgentGym's client requests it right after ``create``
            ReadRoute("/filtered_vocab", REMAINING_WORDS, reply_before_reset=REMAINING_WORDS),
        ),
        task_index_of=wordle_task_index,
    ),
    "ALFWorld": ServerDialect(
        task_field="game",
        reset_options={"world_type": ("Text", "Embody", "Hybrid")},
        create_reply=_ID_REPLY,
        reset_reply={**_ID_REPLY, **_ALFWORLD_STATE},
        step_reply=_ALFWORLD_STEP,
        read_routes=(
            ReadRoute("/observation", BARE_OBSERVATION),
            ReadRoute("/available_actions", available_actions),
            ReadRoute("/detail", {**_ALFWORLD_STATE, **_OUTCOME}),
        ),
    ),
    "SQLGym": ServerDialect(
        id_field="env_idx",
        task_field="item_id",
        create_reply=INSTANCE_ID,
        reset_reply=observation_pair,
        # AgentGym's server sends the gold query in ``info``; ours never does.
        step_reply={"state": OBSERVATION, "reward": REWARD, "done": DONE, "info": constant({})},
        read_routes=(ReadRoute("/observation", attrgetter("initial_observation")),),
        lists_instances=True,
        text_errors=True,
        final_when_done=False,
        task_index_of=list_task_index,
    ),
    "WebShop": ServerDialect(
        id_field="env_idx",
        task_field="session_id",
        task_default=-1,
        starts_itself=True,
        create_reply=INSTANCE_ID,
        reset_reply=observation_pair,
        step_reply={"state": OBSERVATION, "reward": REWARD, "done": DONE, "info": constant(None)},
        read_routes=(
            ReadRoute("/observation", OBSERVATION),
            ReadRoute(
                "/available_actions",
                {
                    "has_search_bar": attrgetter("environment.has_search_bar"),
                    "clickables": attrgetter("environment.clickables"),
                },
            ),
            ReadRoute("/instruction_text", shown_instruction),
        ),
        lists_instances=True,
        text_errors=True,
        final_when_done=False,
        task_index_of=session_task_index,
    ),
}
"""The protocol of each server, by the registered name of its environment."""

"""The requests and replies of each AgentGym server, as a table with one row per server.

The source is WooooDyy/AgentGym at commit 3ef9235: ``agentenv-*/agentenv_*/server.py`` and ``environment.py`` or
``env_wrapper.py`` of each environment. ``docs/design/agentgym-servers.md`` lists where our servers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, mod
from typing import TypeAlias

import msgspec

from runner.serve.env_api.pool import PooledInstance, PoolRejected

Getter: TypeAlias = Callable[[PooledInstance], object]
ReplyTemplate: TypeAlias = Mapping[str, Getter] | Getter
"""Template of a reply: a JSON object with a function for each member, or a function for a single value."""


def members(names: str, source: str = "", **others: Getter) -> dict[str, Getter]:
    """Return the template of an object with these attributes of an instance, or of its ``source``, as members."""
    return {name: attrgetter(source + name) for name in names.split()} | others


def constant(value: object) -> Getter:
    return lambda instance: value


OBSERVATION: Getter = attrgetter("observation")
REMAINING_WORDS: Getter = attrgetter("environment.remaining_words")
BARE_OBSERVATION: Getter = attrgetter("environment.observation")
"""ALFWorld's observation without the list of actions, which is in a separate reply field."""


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


def list_task_index(task_number: int, n_tasks: int) -> int:
    """SQLGym's server rejects numbers outside its task list, and so does WebShop's."""
    if not 0 <= task_number < n_tasks:
        raise PoolRejected(f"Task {task_number} is out of range: there are {n_tasks} tasks, counted from 0")
    return task_number


class ServerDialect(msgspec.Struct, frozen=True, kw_only=True):
    """The protocol of one AgentGym server.

    Attributes:
        task_default: task number of a request that has none; None: the request must have one.
        reset_options: further text fields of ``reset`` with their values.
        create_starts_task: whether ``create`` requires a JSON object and starts task 0.
        starts_itself: whether an instance can be used before its first reset; it then has the first task.
        reads: replies of the GET routes of an instance, by path.
        before_reset: the same before the first reset of the instance, or the text of an error; without an entry, the
            error is the id of the instance.
        lists_actions: whether ``/available_actions`` returns a list of actions which is the same for all instances.
        text_errors: whether errors are plain text with status 500; if not, they are JSON objects with status 200.
        final_when_done: whether, after the end of a task, every request except ``reset`` fails. If not, the instance
            can still be read, and in compat mode also be stepped.
        task_index_of: returns the task index for a task number and the number of tasks; used in compat mode.
    """

    task_field: str
    task_default: int | None = None
    create_reply: ReplyTemplate
    reset_reply: ReplyTemplate
    step_reply: dict[str, Getter]
    prefix: str = ""
    id_field: str = "id"
    reset_options: Mapping[str, tuple[str, ...]] = {}
    create_starts_task: bool = False
    starts_itself: bool = False
    reads: Mapping[str, ReplyTemplate]
    before_reset: Mapping[str, ReplyTemplate | str] = {}
    lists_actions: bool = False
    lists_instances: bool = False
    text_errors: bool = False
    final_when_done: bool = True
    task_index_of: Callable[[int, int], int] = mod


_ID = members("id")
_STEP = members("observation reward done")
_STATE = members("observation reward score done")
_OUTCOME = members("done reward", deleted=constant(False))
_ALFWORLD_TEXT = {"observation": BARE_OBSERVATION, "available_actions": available_actions}
_ALFWORLD_STATE = {**_ALFWORLD_TEXT, **members("task_type", "environment.")}

CREATE_ENV = ServerDialect(
    id_field="env_id",
    task_field="task_index",
    create_reply={"env_id": attrgetter("id")},
    reset_reply={},  # there is no reset
    step_reply=_STEP,
    reads={"/observation": members("observation done")},
    final_when_done=False,
)
"""The protocol of other field runners, beside AgentGym's; the first use of an instance starts the task.

So an instance whose task cannot be started has an id with which it can be closed. The client side of the protocol is
``create_env_dialect`` in ``runner/envs/http/dialects.py``.
"""

DIALECTS: Mapping[str, ServerDialect] = {
    "BabyAI": ServerDialect(
        task_field="data_idx",
        create_reply=_ID,
        reset_reply={**_STATE, **_OUTCOME},
        step_reply=_STATE,
        reads={"/observation": {**_STATE, **_OUTCOME, "observation": observation_with_goal}},
        before_reset={"/observation": {**_STATE, **_OUTCOME, "observation": constant("Environment not initialized")}},
        task_index_of=babyai_task_index,
    ),
    "TextCraft": ServerDialect(
        task_field="data_idx",
        task_default=0,
        create_starts_task=True,
        create_reply={**_ID, **_STEP},
        reset_reply={**_ID, **_STEP},
        step_reply=_STEP,
        reads={"/observation": OBSERVATION, "/detail": {**_OUTCOME, **_STEP}},
        final_when_done=False,
    ),
    "Maze": ServerDialect(
        prefix="/maze",
        task_field="game",
        create_reply=_ID,
        reset_reply=members("observation"),
        step_reply=_STEP,
        reads={
            "/observation": OBSERVATION,
            "/detail": {"maze_name": constant("double_t_maze"), **_OUTCOME, **_STEP},
        },
        before_reset={"/observation": "'observation'", "/detail": "'goal_position'"},
        lists_actions=True,
        task_index_of=maze_task_index,
    ),
    "Wordle": ServerDialect(
        prefix="/wordle",
        task_field="seed",
        create_reply=_ID,
        reset_reply=members("id observation"),
        step_reply=_STEP,
        reads={
            "/observation": OBSERVATION,
            "/detail": {**_OUTCOME, **_STEP, "seed": attrgetter("task_number")},
            "/filtered_vocab": REMAINING_WORDS,
        },
        # AgentGym's client requests the vocabulary right after ``create``
        before_reset={"/observation": "'observation'", "/detail": _OUTCOME, "/filtered_vocab": REMAINING_WORDS},
        task_index_of=lambda number, n_tasks: abs(number) % n_tasks,  # AgentGym's server ignores the sign
    ),
    "ALFWorld": ServerDialect(
        task_field="game",
        reset_options={"world_type": ("Text", "Embody", "Hybrid")},
        create_reply=_ID,
        reset_reply={**_ID, **_ALFWORLD_STATE},
        step_reply={**_STEP, **_ALFWORLD_TEXT},
        reads={
            "/observation": BARE_OBSERVATION,
            "/available_actions": available_actions,
            "/detail": {**_OUTCOME, **_ALFWORLD_STATE},
        },
    ),
    "SQLGym": ServerDialect(
        id_field="env_idx",
        task_field="item_id",
        create_reply=attrgetter("id"),
        reset_reply=observation_pair,
        # AgentGym's server sends the gold query in ``info``; ours never does.
        step_reply=members("reward done", state=OBSERVATION, info=constant({})),
        reads={"/observation": attrgetter("initial_observation")},
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
        create_reply=attrgetter("id"),
        reset_reply=observation_pair,
        step_reply=members("reward done", state=OBSERVATION, info=constant(None)),
        reads={
            "/observation": OBSERVATION,
            "/available_actions": members("has_search_bar clickables", "environment."),
            "/instruction_text": shown_instruction,
        },
        lists_instances=True,
        text_errors=True,
        final_when_done=False,
        # without a session, -1, AgentGym's server chooses any goal
        task_index_of=lambda number, n_tasks: 0 if number == -1 else list_task_index(number, n_tasks),
    ),
}
"""The protocol of each server, by the registered name of its environment."""

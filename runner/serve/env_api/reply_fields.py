"""Reply fields: how each member of a server's reply is read from an instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TypeAlias

from runner.serve.env_api.pool import PooledInstance

FieldGetter: TypeAlias = Callable[[PooledInstance], object]
ReplyTemplate: TypeAlias = Mapping[str, FieldGetter] | FieldGetter
"""A JSON object by its members, or a single value."""


def constant(value: object) -> FieldGetter:
    """Return a getter of the same value for every instance."""
    return lambda instance: value


INSTANCE_ID: FieldGetter = attrgetter("instance_id")
OBSERVATION: FieldGetter = attrgetter("observation")
REWARD: FieldGetter = attrgetter("reward")
SCORE: FieldGetter = attrgetter("score")
DONE: FieldGetter = attrgetter("done")
TASK_NUMBER: FieldGetter = attrgetter("task_number")
DELETED: FieldGetter = constant(False)

BARE_OBSERVATION: FieldGetter = attrgetter("environment.observation")
"""ALFWorld's observation without the list of actions, which has its own field."""
TASK_TYPE: FieldGetter = attrgetter("environment.task_type")
INSTRUCTION: FieldGetter = attrgetter("environment.instruction")
HAS_SEARCH_BAR: FieldGetter = attrgetter("environment.has_search_bar")
CLICKABLES: FieldGetter = attrgetter("environment.clickables")


def available_actions(instance: PooledInstance) -> list[str]:
    """Return the admissible actions."""
    return instance.environment.admissible_actions() or []


def observation_with_goal(instance: PooledInstance) -> str:
    """Return the observation below the first line of the task, as BabyAI's ``/observation`` does."""
    initial_observation = instance.initial_observation or ""
    if instance.observation == initial_observation:
        return initial_observation
    return f"{initial_observation.partition(chr(10))[0]}\n{instance.observation}"


def observation_pair(instance: PooledInstance) -> list[object]:
    """Return ``[observation, null]``, as SQLGym's and WebShop's ``/reset`` do."""
    return [instance.observation, None]


def render_reply(reply: ReplyTemplate, instance: PooledInstance) -> object:
    """Return a reply about an instance as plain values."""
    return render_fields(reply, instance) if isinstance(reply, Mapping) else reply(instance)


def render_fields(reply: Mapping[str, FieldGetter], instance: PooledInstance) -> dict[str, object]:
    """Return a reply that is a JSON object."""
    return {name: value(instance) for name, value in reply.items()}

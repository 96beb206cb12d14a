"""What each of AgentGym's servers takes and answers, one table row each; ``docs/serving.md`` says where ours differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from runner.serve.env_api import values as of
from runner.serve.env_api.fields import Field
from runner.serve.env_api.values import Reply, Value


class Read(msgspec.Struct, frozen=True):
    """A GET route that shows something of an instance.

    Attributes:
        before: the reply before the first reset; None: an error.
        missing: what AgentGym's server calls that error; None: the id.
    """

    path: str
    reply: Reply
    before: Reply | None = None
    missing: str | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One server's part of the protocol.

    Attributes:
        prefix: what its paths start with.
        key: the field that names an instance.
        task: the field of a reset that names the task.
        options: further fields of a reset.
        create_takes_body: whether ``create`` wants a JSON object, and starts task 0.
        created: reply to ``create``.
        was_reset: reply to ``reset``.
        stepped: reply to ``step``; ``truncated`` is added to it.
        reads: further routes.
        lists: paths of what is the same for all instances: the actions that are always there.
        plain_errors: whether errors are plain texts with status 500, not objects with status 200.
        ends: whether nothing but a reset is answered after the end of a task.
        number_task: the index of the task that AgentGym's server plays under a number.
    """

    task: Field
    created: Reply
    was_reset: Reply
    stepped: Mapping[str, Value]
    prefix: str = ""
    key: str = "id"
    options: tuple[Field, ...] = ()
    create_takes_body: bool = False
    reads: tuple[Read, ...] = ()
    lists: tuple[str, ...] = ()
    lists_open: bool = False
    plain_errors: bool = False
    ends: bool = True
    number_task: Callable[[int, int], int] = lambda given, n_tasks: given % n_tasks


_STEPPED: Mapping[str, Value] = {"observation": of.OBSERVATION, "reward": of.REWARD, "done": of.DONE}
_STATE = {"observation": of.OBSERVATION, "reward": of.REWARD, "score": of.SCORE, "done": of.DONE}
_ID: Mapping[str, Value] = {"id": of.NUMBER}
_TOLD: Mapping[str, Value] = {"id": of.NUMBER, "observation": of.OBSERVATION, "done": of.DONE, "reward": of.REWARD}
_JUDGED: Mapping[str, Value] = {"done": of.DONE, "reward": of.REWARD, "deleted": of.DELETED}
_UNTOLD = of.always("Environment not initialized")
_NO_OBSERVATION = "'observation'"

DIALECTS: Mapping[str, Dialect] = {
    "BabyAI": Dialect(
        task=Field("data_idx"),
        created=_ID,
        was_reset={**_STATE, "deleted": of.DELETED},
        stepped=_STATE,
        reads=(
            Read(
                "/observation",
                {**_STATE, "observation": of.with_goal, "deleted": of.DELETED},
                before={**_STATE, "observation": _UNTOLD, "deleted": of.DELETED},
            ),
        ),
        number_task=of.as_babyai,
    ),
    "TextCraft": Dialect(
        task=Field("data_idx", required=False, default=0),
        create_takes_body=True,
        created=_TOLD,
        was_reset=_TOLD,
        stepped=_STEPPED,
        reads=(Read("/observation", of.OBSERVATION), Read("/detail", {"observation": of.OBSERVATION, **_JUDGED})),
        ends=False,
    ),
    "Maze": Dialect(
        prefix="/maze",
        task=Field("game"),
        created=_ID,
        was_reset={"observation": of.OBSERVATION},
        stepped=_STEPPED,
        reads=(
            Read("/observation", of.OBSERVATION, missing=_NO_OBSERVATION),
            Read(
                "/detail",
                {"maze_name": of.always("double_t_maze"), "observation": of.OBSERVATION, **_JUDGED},
                missing="'goal_position'",
            ),
        ),
        lists=("/available_actions",),
        number_task=of.as_maze,
    ),
    "Wordle": Dialect(
        prefix="/wordle",
        task=Field("seed"),
        created=_ID,
        was_reset={"id": of.NUMBER, "observation": of.OBSERVATION},
        stepped=_STEPPED,
        reads=(
            Read("/observation", of.OBSERVATION, missing=_NO_OBSERVATION),
            Read("/detail", {**_JUDGED, "observation": of.OBSERVATION, "seed": of.GIVEN}, before=_JUDGED),
        ),
        number_task=of.as_wordle,
    ),
    "ALFWorld": Dialect(
        task=Field("game"),
        options=(Field("world_type", "string", one_of=("Text", "Embody", "Hybrid")),),
        created=_ID,
        was_reset={"id": of.NUMBER, "observation": of.SEEN, "available_actions": of.actions, "task_type": of.TASK_TYPE},
        stepped={**_STEPPED, "observation": of.SEEN, "available_actions": of.actions},
        reads=(
            Read("/observation", of.SEEN),
            Read("/available_actions", of.actions),
            Read(
                "/detail",
                {"observation": of.SEEN, "available_actions": of.actions, "task_type": of.TASK_TYPE, **_JUDGED},
            ),
        ),
    ),
    "SQLGym": Dialect(
        key="env_idx",
        task=Field("item_id"),
        created=of.NUMBER,
        was_reset=of.pair,
        # AgentGym's server sends the query that was asked for in ``info``; ours tells nobody.
        stepped={"state": of.OBSERVATION, "reward": of.REWARD, "done": of.DONE, "info": of.always({})},
        reads=(Read("/observation", of.OBSERVATION),),
        lists_open=True,
        plain_errors=True,
        ends=False,
        number_task=of.as_list,
    ),
    "WebShop": Dialect(
        key="env_idx",
        task=Field("session_id"),
        created=of.NUMBER,
        was_reset=of.pair,
        stepped={"state": of.OBSERVATION, "reward": of.REWARD, "done": of.DONE, "info": of.always(None)},
        reads=(
            Read("/observation", of.OBSERVATION),
            Read(
                "/available_actions",
                {
                    "has_search_bar": of.HAS_SEARCH_BAR,
                    "clickables": of.CLICKABLES,
                },
            ),
            Read("/instruction_text", of.INSTRUCTION),
        ),
        lists_open=True,
        plain_errors=True,
        ends=False,
        number_task=of.as_list,
    ),
}
"""By registered name."""

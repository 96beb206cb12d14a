"""What each kind of server expects and answers: one row per server, which one client reads."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from runner.envs.http import admissible

Place: TypeAlias = tuple[str | int, ...]
"""Where in a reply something is: keys of objects and places in lists; empty for the reply itself."""


class Hole(enum.Enum):
    """Part of a request that differs between episodes."""

    TASK = "the task's index"
    ENV = "the environment's name"


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of server is spoken to.

    Attributes:
        embedded: the class that has this environment's rules (commands, success, number of tasks), if there is one.
        expected: where there is none, what an action looks like.
        n_tasks: how many tasks AgentGym's server has; None: not known, or as many as the embedded class.
        id_field: what an instance's id is called in requests; it is found at ``created_at`` of the reply to ``create``.
        fresh: whether every reset needs an instance of its own.
        opening: the parts of the first observation; only the last has to be there.
        done_at: the flag that ends an episode; so does ``truncated``, where there is one.
        actions_at: the list of possible actions, which is shown with each observation as BabyAI shows it.
        actions: where the possible actions are known from: the rules, the end of each observation, or the first one,
            which a function reads. Servers of ours tell them where nothing else does.
        page_at: the path of what can be done on WebShop's page.
        reward: what a reward is: that of the step; of the whole episode, repeated from the success on; or all so far.
        best: where there is no embedded class, the least reward that is a success.
        sends_meaning: whether a text is sent as the command that it means, since the server would not find it in there.
    """

    name: str
    embedded: str | None = None
    expected: str = "a text"
    n_tasks: int | None = None
    prefix: str = ""
    id_field: str = "id"
    create: str = "/create"
    create_body: Mapping[str, Any] = {}
    created_at: Place = ("id",)
    fresh: bool = False
    reset: str = "/reset"
    reset_body: Mapping[str, Any] = {}
    opening: tuple[Place, ...] = (("observation",),)
    observation_at: Place = ("observation",)
    done_at: Place = ("done",)
    actions_at: Place | None = None
    actions: Literal["rules", "shown"] | Callable[[str], list[str] | None] | None = None
    page_at: str | None = None
    reward: Literal["step", "once", "total"] = "step"
    reward_at: Place = ("reward",)
    best: float = 1.0
    sends_meaning: bool = False


def _tool_server(name: str) -> Dialect:
    return Dialect(
        name=name,
        expected='a text with "Action: NAME with Action Input: JSON", such as "Action: finish with Action Input: '
        '{\\"answer\\": \\"42\\"}"',
        id_field="env_idx",
        create_body={"id": Hole.TASK},
        created_at=(),
        reset_body={"id": Hole.TASK},
        opening=((),),
        reward="total",
    )


_ROWS = (
    Dialect(
        name="BabyAI",
        embedded="runner.envs.babyai:BabyAI",
        reset_body={"data_idx": Hole.TASK},
        actions="shown",
        reward="once",
    ),
    Dialect(
        name="TextCraft",
        embedded="runner.envs.textcraft:TextCraft",
        n_tasks=544,
        reset_body={"data_idx": Hole.TASK},
        actions=admissible.craftings,
    ),
    Dialect(
        name="Maze",
        embedded="runner.envs.maze:Maze",
        n_tasks=25,
        prefix="/maze",
        reset_body={"game": Hole.TASK},
        actions="rules",
    ),
    Dialect(
        name="Wordle",
        embedded="runner.envs.wordle:Wordle",
        prefix="/wordle",
        reset_body={"seed": Hole.TASK},
        actions="rules",
    ),
    Dialect(
        name="ALFWorld",
        embedded="runner.envs.alfworld:ALFWorld",
        n_tasks=2620,
        reset_body={"game": Hole.TASK, "world_type": "Text"},
        actions_at=("available_actions",),
        actions="shown",
    ),
    Dialect(
        name="SQLGym",
        embedded="runner.envs.sqlgym:SQLGym",
        n_tasks=10_962,  # BIRD's train tasks up to 9427, its dev tasks after them
        id_field="env_idx",
        created_at=(),
        reset_body={"item_id": Hole.TASK},
        opening=((0,),),
        observation_at=("state",),
        actions=admissible.counts,
        sends_meaning=True,
    ),
    Dialect(
        name="WebShop",
        embedded="runner.envs.webshop:WebShop",
        id_field="env_idx",
        created_at=(),
        reset_body={"session_id": Hole.TASK},
        opening=((0,),),
        observation_at=("state",),
        page_at="/available_actions",
    ),
    Dialect(
        name="SciWorld",
        expected='a command, such as "look around" or "pick up thermometer"',
        n_tasks=4639,
        reset_body={"data_idx": Hole.TASK},
        opening=(("task_description",), ("observation",)),
        reward="total",
        reward_at=("score",),
        best=100.0,
    ),
    Dialect(
        name="WebArena",
        expected="a text with one action between triple backticks, such as ```click [1234]``` or ```stop [answer]```",
        id_field="env_idx",
        created_at=("env_idx",),
        reset_body={"seed": 0, "idx": Hole.TASK},
        opening=(("object",), ("observation",)),
        done_at=("terminated",),
    ),
    Dialect(
        name="SearchQA",
        expected="a text with <search>QUERY</search> or <answer>ANSWER</answer>",
        id_field="env_idx",
        create_body={"id": Hole.TASK},
        created_at=(),
        reset_body={"id": Hole.TASK},
        opening=((),),
    ),
    *map(_tool_server, ("Academia", "Movie", "Sheet", "Todo", "Weather")),
)
_BY_NAME = {row.name.lower(): row for row in _ROWS}

_CREATE_ENV = Dialect(
    name="createEnv",
    id_field="env_id",
    create="/createEnv",
    create_body={"env_name": Hole.ENV},
    created_at=("env_id",),
    fresh=True,
    reset="/observation",
)


def dialect_for(env: str) -> Dialect | None:
    """AgentGym's dialect for an environment, by its name in any case; None where there is none."""
    return _BY_NAME.get(env.lower())


def create_env_dialect(env: str) -> Dialect:
    """The dialect of servers with a path ``/createEnv``, for ``env`` and with its rules; they choose the task."""
    row = dialect_for(env) or Dialect(name=env)
    return msgspec.structs.replace(_CREATE_ENV, name=row.name, embedded=row.embedded, expected=row.expected)


def filled(body: Mapping[str, Any], *, task: int, env: str) -> dict[str, Any]:
    """A request's body with its holes filled."""
    holes = {Hole.TASK: task, Hole.ENV: env}
    return {key: holes[value] if isinstance(value, Hole) else value for key, value in body.items()}

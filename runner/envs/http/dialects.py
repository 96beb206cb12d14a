"""What each kind of server expects and answers: one row per server, which one client reads."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from runner.envs.http import admissible

_CRAFTING = re.compile(r"^craft \d+ (?P<made>.+?) using (?P<used>.+)$", re.MULTILINE)


_BUTTON = "search"
"""WebShop's search bar has one, and a click on it does nothing."""


def textcraft_actions(opening: str) -> list[str]:
    """``inventory``, the crafting commands of a task of TextCraft, and getting what they take and none of them makes.

    There are more. Not all are possible at once, as that depends on what is held.
    """
    recipes = list(_CRAFTING.finditer(opening))
    made = {recipe["made"] for recipe in recipes}
    amounts = dict.fromkeys(amount for recipe in recipes for amount in recipe["used"].split(", "))
    gets = [f"get {amount}" for amount in amounts if amount.partition(" ")[2] not in made]
    return ["inventory", *gets, *(recipe[0] for recipe in recipes)]


def sqlgym_actions(opening: str) -> list[str] | None:
    """How many rows each table of a task of SQLGym has; None where the text names no tables."""
    names, more, _ = opening.partition(" contains tables such as ")[2].partition(". Table ")
    if not more:
        return None
    return ['SELECT count(*) FROM "{}"'.format(name.replace('"', '""')) for name in names.split(", ")]


def webshop_actions(opening: str, *, has_search_bar: bool, clickables: Iterable[str]) -> list[str]:
    """A click on each thing of WebShop's page, and where it has a search bar a search for what is wanted."""
    wanted = opening.partition("Instruction: [SEP] ")[2].partition(" [SEP] ")[0]
    searches = [f"search[{wanted}]"] if has_search_bar and wanted else []
    return searches + [f"click[{element}]" for element in clickables if element != _BUTTON]


JsonPath: TypeAlias = tuple[str | int, ...]
"""Where in a reply something is: keys of objects and places in lists; empty for the reply itself."""


class Placeholder(enum.Enum):
    """Part of a request that differs between episodes."""

    TASK = "the task's index"
    ENV = "the environment's name"


class ClientDialect(msgspec.Struct, frozen=True, kw_only=True):
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
    created_at: JsonPath = ("id",)
    fresh: bool = False
    reset: str = "/reset"
    reset_body: Mapping[str, Any] = {}
    opening: tuple[JsonPath, ...] = (("observation",),)
    observation_at: JsonPath = ("observation",)
    done_at: JsonPath = ("done",)
    actions_at: JsonPath | None = None
    actions: Literal["rules", "shown"] | Callable[[str], list[str] | None] | None = None
    page_at: str | None = None
    reward: Literal["step", "once", "total"] = "step"
    reward_at: JsonPath = ("reward",)
    best: float = 1.0
    sends_meaning: bool = False


def _tool_server(name: str) -> ClientDialect:
    return ClientDialect(
        name=name,
        expected='a text with "Action: NAME with Action Input: JSON", such as "Action: finish with Action Input: '
        '{\\"answer\\": \\"42\\"}"',
        id_field="env_idx",
        create_body={"id": Placeholder.TASK},
        created_at=(),
        reset_body={"id": Placeholder.TASK},
        opening=((),),
        reward="total",
    )


_ROWS = (
    ClientDialect(
        name="BabyAI",
        embedded="runner.envs.babyai:BabyAI",
        reset_body={"data_idx": Placeholder.TASK},
        actions="shown",
        reward="once",
    ),
    ClientDialect(
        name="TextCraft",
        embedded="runner.envs.textcraft:TextCraft",
        n_tasks=544,
        reset_body={"data_idx": Placeholder.TASK},
        actions=admissible.craftings,
    ),
    ClientDialect(
        name="Maze",
        embedded="runner.envs.maze:Maze",
        n_tasks=25,
        prefix="/maze",
        reset_body={"game": Placeholder.TASK},
        actions="rules",
    ),
    ClientDialect(
        name="Wordle",
        embedded="runner.envs.wordle:Wordle",
        prefix="/wordle",
        reset_body={"seed": Placeholder.TASK},
        actions="rules",
    ),
    ClientDialect(
        name="ALFWorld",
        embedded="runner.envs.alfworld:ALFWorld",
        n_tasks=2620,
        reset_body={"game": Placeholder.TASK, "world_type": "Text"},
        actions_at=("available_actions",),
        actions="shown",
    ),
    ClientDialect(
        name="SQLGym",
        embedded="runner.envs.sqlgym:SQLGym",
        n_tasks=10_962,  # BIRD's train tasks up to 9427, its dev tasks after them
        id_field="env_idx",
        created_at=(),
        reset_body={"item_id": Placeholder.TASK},
        opening=((0,),),
        observation_at=("state",),
        actions=admissible.counts,
        sends_meaning=True,
    ),
    ClientDialect(
        name="WebShop",
        embedded="runner.envs.webshop:WebShop",
        id_field="env_idx",
        created_at=(),
        reset_body={"session_id": Placeholder.TASK},
        opening=((0,),),
        observation_at=("state",),
        page_at="/available_actions",
    ),
    ClientDialect(
        name="SciWorld",
        expected='a command, such as "look around" or "pick up thermometer"',
        n_tasks=4639,
        reset_body={"data_idx": Placeholder.TASK},
        opening=(("task_description",), ("observation",)),
        reward="total",
        reward_at=("score",),
        best=100.0,
    ),
    ClientDialect(
        name="WebArena",
        expected="a text with one action between triple backticks, such as ```click [1234]``` or ```stop [answer]```",
        id_field="env_idx",
        created_at=("env_idx",),
        reset_body={"seed": 0, "idx": Placeholder.TASK},
        opening=(("object",), ("observation",)),
        done_at=("terminated",),
    ),
    ClientDialect(
        name="SearchQA",
        expected="a text with <search>QUERY</search> or <answer>ANSWER</answer>",
        id_field="env_idx",
        create_body={"id": Placeholder.TASK},
        created_at=(),
        reset_body={"id": Placeholder.TASK},
        opening=((),),
    ),
    *map(_tool_server, ("Academia", "Movie", "Sheet", "Todo", "Weather")),
)
_BY_NAME = {row.name.lower(): row for row in _ROWS}

_CREATE_ENV = ClientDialect(
    name="createEnv",
    id_field="env_id",
    create="/createEnv",
    create_body={"env_name": Placeholder.ENV},
    created_at=("env_id",),
    fresh=True,
    reset="/observation",
)


def dialect_for(env: str) -> ClientDialect | None:
    """AgentGym's dialect for an environment, by its name in any case; None where there is none."""
    return _BY_NAME.get(env.lower())


def create_env_dialect(env: str) -> ClientDialect:
    """The dialect of servers with a path ``/createEnv``, for ``env`` and with its rules; they choose the task."""
    row = dialect_for(env) or ClientDialect(name=env)
    return msgspec.structs.replace(_CREATE_ENV, name=row.name, embedded=row.embedded, expected=row.expected)


def fill_placeholders(body: Mapping[str, Any], *, task: int, env: str) -> dict[str, Any]:
    """A request's body with its holes filled."""
    holes = {Placeholder.TASK: task, Placeholder.ENV: env}
    return {key: holes[value] if isinstance(value, Placeholder) else value for key, value in body.items()}

"""Wire dialects of the environment servers: a ``ClientDialect`` describes requests and replies of one kind of server.

They follow AgentGym at commit 3ef9235; a comment at each dialect names the server's source file in its repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from typing import Any, Final, Literal

import msgspec

from runner.envs.http.response import JsonPath, Payload

_RECIPE_LINE = re.compile(r"^craft \d+ (?P<output>.+?) using (?P<ingredients>.+)$", re.MULTILINE)
MAX_ACTIONS_PER_TEMPLATE = 2500
"""Maximum number of actions that are made from one of ScienceWorld's templates."""
_OBJECT = re.compile(r"\b(?:OBJ|LOC)\b")
_MAX_TEMPLATE_PARTS = 3


def textcraft_actions(opening: str) -> list[str]:
    """Return some admissible actions; whether one of them succeeds depends on the inventory."""
    recipes = list(_RECIPE_LINE.finditer(opening))
    outputs = {recipe["output"] for recipe in recipes}
    amounts = dict.fromkeys(amount for recipe in recipes for amount in recipe["ingredients"].split(", "))
    gets = [f"get {amount}" for amount in amounts if amount.partition(" ")[2] not in outputs]
    return ["inventory", *gets, *(recipe[0] for recipe in recipes)]


def sqlgym_actions(opening: str) -> list[str] | None:
    """Return one row-count query per table of a SQLGym task; None if the first observation names no tables."""
    names, separator, _ = opening.partition(" contains tables such as ")[2].partition(". Table ")
    if not separator:
        return None
    return ['SELECT count(*) FROM "{}"'.format(name.replace('"', '""')) for name in names.split(", ")]


def webshop_actions(opening: str, *, has_search_bar: bool, clickables: Iterable[str]) -> list[str]:
    """Return a click per element of a WebShop page, after a search for the instruction if the page has a search bar."""
    instruction = opening.partition("Instruction: [SEP] ")[2].partition(" [SEP] ")[0]
    searches = [f"search[{instruction}]"] if has_search_bar and instruction else []
    # the button of the search bar is listed as clickable, but a click on it does nothing
    return searches + [f"click[{element}]" for element in clickables if element != "search"]


def sciworld_actions(templates: Iterable[str], objects: Iterable[str]) -> list[str]:
    """Return the actions of ScienceWorld's command templates, such as ``pour OBJ into OBJ``, with the visible objects.

    Templates with two objects take each pair of different objects, at most ``MAX_ACTIONS_PER_TEMPLATE`` pairs.
    ``reset task`` is left out because it starts the task again.
    """
    names = list(dict.fromkeys(objects))
    return [
        action
        for template in dict.fromkeys(templates)
        if template != "reset task"
        for action in _fill_template(_OBJECT.split(template), names)
    ]


def _fill_template(parts: list[str], names: Sequence[str]) -> Iterator[str]:
    if len(parts) > _MAX_TEMPLATE_PARTS:
        return
    choices = islice(permutations(names, len(parts) - 1), MAX_ACTIONS_PER_TEMPLATE)
    yield from ("".join(chain(*zip(parts, (*choice, ""), strict=True))) for choice in choices)


TASK: Final = object()
"""Value in a request body that stands for the task's index."""


class ClientDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and replies of one kind of server.

    Attributes:
        embedded: entry point of the embedded class with the same commands, success rule and number of tasks, if any.
        greeting: name in the greeting of AgentGym's server, in any case; None if the server returns only ``ok``.
        n_tasks: number of tasks of AgentGym's server; None if unknown or equal to that of the embedded class.
        places: number of instances after which AgentGym's server reissues the id of another instance; None if it never
            does.
        fresh: whether every reset needs a new instance.
        opening: paths of the parts of the first observation; only the last part is required.
        done_at: path of the flag that ends an episode. A ``truncated`` flag also ends it.
        shows: expected text of ``GET /observation`` from the first observation and the latest reply, as recorded on
            AgentGym's server; None without a recording. An instance that shows another text is another episode's.
        actions_at: path of the list of possible actions; the list is appended to each observation in BabyAI's form.
        actions: source of the admissible actions: the task rules, the last line of each observation, or a function of
            the first observation. This project's own servers list them at ``/admissible`` instead.
        page_at: request path of what WebShop's page or SciWorld's room offers, of which, with the first observation,
            ``page_actions`` makes the admissible actions.
        reward: meaning of the reward field: ``step`` for the reward of the step, ``once`` for a reward that every later
            reply repeats, ``total`` for the sum of the rewards of all steps. What the reset has earned, as SciWorld's
            first look around, is in the reward of the first step, so that the steps add up to the server's score.
        best: smallest reward that counts as success, for environments without an embedded class.
        planner: import path of a planner that needs only the server's observations. Without one, the oracle plans on an
            instance of the embedded class, which needs the server's tasks.
        sends_meaning: whether to parse a text and send the resulting command instead of the text, because the server
            does not parse texts.
    """

    name: str
    greeting: str | None = None
    embedded: str | None = None
    expected: str = "a text"
    n_tasks: int | None = None
    places: int | None = None
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
    shows: Callable[[str, str], str] | None = None
    shown_at: JsonPath = ()
    actions_at: JsonPath | None = None
    actions: Literal["rules", "shown"] | Callable[[str], list[str] | None] | None = None
    page_at: str | None = None
    page_actions: Callable[[str, Payload], list[str]] = lambda opening, page: []
    reward: Literal["step", "once", "total"] = "step"
    reward_at: JsonPath = ("reward",)
    best: float = 1.0
    planner: str | None = None
    sends_meaning: bool = False

    def body(self, template: Mapping[str, Any], task: int) -> dict[str, Any]:
        return {key: task if value is TASK else value for key, value in template.items()}


def _tool_server(name: str) -> ClientDialect:
    # agentenv-tool/agentenv_<name>/<name>_server.py
    return ClientDialect(
        name=name,
        expected='a text with "Action: NAME with Action Input: JSON", such as "Action: finish with Action Input: '
        '{\\"answer\\": \\"42\\"}"',
        id_field="env_idx",
        create_body={"id": TASK},
        created_at=(),
        reset_body={"id": TASK},
        opening=((),),
        reward="total",
    )


_ROWS = (
    # agentenv-babyai/agentenv_babyai/server.py; environment.py repeats the success reward in every later reply
    ClientDialect(
        name="BabyAI",
        greeting="BabyAI",
        embedded="runner.envs.babyai:BabyAI",
        reset_body={"data_idx": TASK},
        shows=lambda opening, latest: latest if latest == opening else f"{opening.partition(chr(10))[0]}\n{latest}",
        shown_at=("observation",),
        actions="shown",
        reward="once",
    ),
    # agentenv-textcraft/agentenv_textcraft/server.py and env_wrapper.py
    ClientDialect(
        name="TextCraft",
        greeting="TextCraft",
        embedded="runner.envs.textcraft:TextCraft",
        n_tasks=544,
        reset_body={"data_idx": TASK},
        shows=lambda opening, latest: latest,
        actions=textcraft_actions,
        planner="runner.envs.textcraft.ListingPlanner",
    ),
    # agentenv-lmrlgym/agentenv_lmrlgym/server.py, mounted at /maze; maze/environment.py
    ClientDialect(
        name="Maze",
        greeting="LMRL-Gym",
        embedded="runner.envs.maze:Maze",
        n_tasks=25,
        prefix="/maze",
        reset_body={"game": TASK},
        shows=lambda opening, latest: latest,
        actions="rules",
    ),
    # agentenv-lmrlgym/agentenv_lmrlgym/server.py, mounted at /wordle; wordle/environment.py
    ClientDialect(
        name="Wordle",
        greeting="LMRL-Gym",
        embedded="runner.envs.wordle:Wordle",
        prefix="/wordle",
        reset_body={"seed": TASK},
        shows=lambda opening, latest: latest,
        actions="rules",
    ),
    # agentenv-alfworld/agentenv_alfworld/server.py and env_wrapper.py
    ClientDialect(
        name="ALFWorld",
        greeting="ALFWorld",
        embedded="runner.envs.alfworld:ALFWorld",
        n_tasks=2620,
        reset_body={"game": TASK, "world_type": "Text"},
        actions_at=("available_actions",),
        actions="shown",
    ),
    # agentenv-sqlgym/agentenv_sqlgym/server.py and environment.py
    ClientDialect(
        name="SQLGym",
        embedded="runner.envs.sqlgym:SQLGym",
        n_tasks=10_962,  # BIRD's train tasks 0-9427, then its dev tasks
        places=8,
        id_field="env_idx",
        created_at=(),
        reset_body={"item_id": TASK},
        opening=((0,),),
        observation_at=("state",),
        shows=lambda opening, latest: opening,
        actions=sqlgym_actions,
        sends_meaning=True,
    ),
    # agentenv-webshop/agentenv_webshop/server.py
    ClientDialect(
        name="WebShop",
        embedded="runner.envs.webshop:WebShop",
        n_tasks=12_087,  # the published instructions
        places=8000,
        id_field="env_idx",
        created_at=(),
        reset_body={"session_id": TASK},
        opening=((0,),),
        observation_at=("state",),
        page_at="/available_actions",
        page_actions=lambda opening, page: webshop_actions(
            opening, has_search_bar=page.flag(("has_search_bar",)), clickables=page.texts(("clickables",))
        ),
    ),
    # agentenv-sciworld/agentenv_sciworld/server.py and environment.py
    ClientDialect(
        name="SciWorld",
        greeting="ScienceWorld",
        expected='a command, such as "look around" or "pick up thermometer"',
        n_tasks=4639,
        reset_body={"data_idx": TASK},
        opening=(("task_description",), ("observation",)),
        page_at="/action_hint",
        page_actions=lambda opening, hint: sciworld_actions(
            hint.texts(("possible_actions",)), hint.texts(("possible_objects",))
        ),
        reward="total",
        reward_at=("score",),
        best=100.0,
    ),
    # agentenv-webarena/agentenv_webarena/server.py
    ClientDialect(
        name="WebArena",
        expected="a text with one action between triple backticks, such as ```click [1234]``` or ```stop [answer]```",
        id_field="env_idx",
        created_at=("env_idx",),
        reset_body={"seed": 0, "idx": TASK},
        opening=(("object",), ("observation",)),
        done_at=("terminated",),
    ),
    # agentenv-searchqa/agentenv_searchqa/server.py
    ClientDialect(
        name="SearchQA",
        expected="a text with <search>QUERY</search> or <answer>ANSWER</answer>",
        id_field="env_idx",
        create_body={"id": TASK},
        created_at=(),
        reset_body={"id": TASK},
        opening=((),),
    ),
    *map(_tool_server, ("Academia", "Movie", "Sheet", "Todo", "Weather")),
)
_BY_NAME = {row.name.lower(): row for row in _ROWS}


def dialect_for(env: str) -> ClientDialect | None:
    """Return None if AgentGym has no server for the environment; ``env`` is case-insensitive."""
    return _BY_NAME.get(env.lower())


def http_names() -> list[str]:
    return [row.name for row in _ROWS]


def create_env_dialect(env: str) -> ClientDialect:
    """Return the dialect of third-party servers with the path ``/createEnv``; they choose the task themselves."""
    row = dialect_for(env) or ClientDialect(name=env)
    return ClientDialect(
        name=row.name,
        embedded=row.embedded,
        expected=row.expected,
        id_field="env_id",
        create="/createEnv",
        create_body={"env_name": row.name},
        created_at=("env_id",),
        fresh=True,
        reset="/observation",
    )

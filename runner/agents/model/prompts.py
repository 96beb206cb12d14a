"""System prompts: the rules of each environment and the expected form of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from runner.agents.model.reply_parsing import ActionStyle, action_style
from runner.types import Mode, ToolSchema
from runner.util.display_text import one_line, pluralize
from runner.util.json_accessors import as_dict, as_text


class EnvironmentGuide(NamedTuple):
    """Rules of an environment and description of its actions, as parts of the system prompt.

    Attributes:
        unit: what a step is called, in the singular.
        own_limit: number of steps after which the environment itself ends an episode; None: no such limit.
    """

    rules: str
    actions: str
    unit: str = "action"
    own_limit: int | None = None


_GUIDES = {
    "alfworld": EnvironmentGuide(
        "You do a household task in a room. Your task is in the first observation; it is done as soon as its goal is "
        "reached. You can carry one object at a time. Go to a receptacle to see what is on it, and open it if it is "
        "closed, to look in it, take from it or put into it. To heat, cool or clean an object, carry it to a "
        "microwave, a fridge or a sinkbasin and use that command there. To examine an object under a lamp, carry it "
        'and use the lamp. "Nothing happens." means that the action was not possible.',
        "The action is one from the list of available actions that ends each observation, exactly as it stands there, "
        "such as: go to fridge 1",
        own_limit=50,
    ),
    "babyai": EnvironmentGuide(
        "You are in a grid world of rooms and have to reach the goal that the first observation names. You see only "
        'what is ahead of you; positions are told as seen from you. "go to", "pickup", "go through" and "toggle and '
        'go through" walk to a target in view by themselves. You can carry one object. A locked door opens with the '
        "key of its colour in your hands. What is not in view may be behind you or behind a door: turn or go through "
        "doors to look for it. The task is over as soon as the goal is reached.",
        "The action is one from the list of available actions that ends each observation, exactly as it stands there, "
        "such as: pickup red ball 1",
    ),
    "maze": EnvironmentGuide(
        "You walk through a maze to its goal, in as few moves as you can. Each observation tells the goal, your "
        "position and the walls around you. A position is a row and a column: move down adds 1 to the first number, "
        "move up takes 1 off; move right adds 1 to the second, move left takes 1 off. A move into a wall leaves you "
        "where you are and still counts. The way to the goal may lead away from it, so remember where you have been "
        "and do not go back and forth.",
        "The action is one of: move up, move down, move left, move right",
        unit="move",
        own_limit=50,
    ),
    "sciworld": EnvironmentGuide(
        "You do an experiment of primary school science in a house with rooms, a workshop, a greenhouse and an outdoor "
        "area. The first observation describes the task. Progress gives points, up to 100, and a serious mistake, such "
        "as focusing on the wrong object, ends the task. You can only act on what is in your room or in your "
        "inventory: open doors, go through them and look around. Focus on an object only where the task asks for it. "
        "If a command is ambiguous, the reply numbers its meanings: answer with the number alone.",
        'The action is a command, such as "look around" or "pick up thermometer". These are the commands; OBJ stands '
        "for an object that you see or hold, LOC for a place next to yours:\n"
        "look around, look at OBJ, look in OBJ, read OBJ, inventory, task, go to LOC, open OBJ, close OBJ, "
        "activate OBJ, deactivate OBJ, use OBJ, use OBJ on OBJ, connect OBJ to OBJ, disconnect OBJ, pick up OBJ, "
        "put down OBJ, move OBJ to OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, eat OBJ, flush OBJ, "
        "focus on OBJ, wait, wait1",
    ),
    "sqlgym": EnvironmentGuide(
        "You answer a question about a database with one SQLite query. The first observation describes the tables, "
        "their columns and keys, and then asks. You have a single try: the rows of your query are compared with those "
        "that were asked for. Select exactly the columns that were asked for and nothing else, and quote names with "
        "spaces or other special characters with double quotes. The database can only be read.",
        "The action is one SQL statement.",
        own_limit=1,
    ),
    "textcraft": EnvironmentGuide(
        "You craft an item of Minecraft. The first observation lists crafting commands and names the goal; crafting "
        "that item ends the task. An item that has a crafting command cannot be got, it has to be crafted; everything "
        "else can be got from the world in any number. A crafting command needs exactly its ingredients, which you "
        "have to hold, and is one crafting with the counts as listed; repeat it for more. Where an ingredient is a "
        "kind of item that can be crafted, such as planks, name one of that kind, such as oak planks; write every "
        "other name exactly as the list does, such as oak logs. Work backwards from the goal first. The list has "
        "crafting commands that you do not need.",
        "The action is one of: get <count> <item>, craft <count> <item> using <count> <item>, <count> <item> …, or "
        "inventory. For example: craft 4 oak planks using 1 oak logs",
    ),
    "webshop": EnvironmentGuide(
        "You shop for what an instruction asks for. Parts of a page are separated by [SEP]. Search with a few "
        "keywords, click a product by its number (such as B0UJ7A40JW), click the value of every option that the "
        "instruction names (such as a colour or a size), and then click Buy Now, which ends the task. The product has "
        "to be of the right kind, with all the attributes and options asked for, below the price; Description and "
        "Features tell more. < Prev goes back. An action that is not possible shows the same page again. Buy the best "
        "match you have found rather than nothing.",
        "The action is one of: search[<keywords>] or click[<something on the page>]. For example: click[Buy Now]",
    ),
    "wordle": EnvironmentGuide(
        "You find a hidden English word of five letters in a few guesses. After each guess its letters are "
        "marked in order: g = right letter in the right place, y = in the word but in another place, b = not in the "
        'word, or not once more. A guess that is not a known word is answered with "invalid word" and uses up a '
        "guess. Each guess should fit all marks so far.",
        "The action is the word alone, five lower-case letters, such as: crane",
        unit="attempt",
        own_limit=6,
    ),
}
_ONCE = ", or not once more", ""
"""A rule of Wordle that AgentGym's server does not have, and what replaces it in compat mode."""
_FORMS: dict[ActionStyle, str] = {
    **dict.fromkeys(("once", "first", "last"), "Thought: <why, in a few words>\nAction: <action>"),
    "sql": "Thought: <why, in a few words>\nAction:\n```sql\n<query>\n```",
    "fence": "Thought: <why, in a few words>\nAction: ```<action>```",
    "raw": "<action>",
}
_AS_CALL = 'The action is a JSON object with the name and the arguments, such as: {"name": "…", "arguments": {…}}'


def system_prompt(
    env: str, schemas: Sequence[ToolSchema], *, as_calls: bool, max_rounds: int | None = None, mode: Mode = "strict"
) -> str:
    """Return the system prompt for an environment.

    Args:
        env: the environment's name, case-insensitive; an unknown environment is described by its tools alone.
        as_calls: whether to request tool calls; the prompt then also explains the text form as a fallback.
        max_rounds: maximum number of steps of the episode; None: only the environment limits them.
    """
    guide = _GUIDES.get(env.lower()) or EnvironmentGuide(
        f"You act in the environment {one_line(env)}.", _actions_of(schemas)
    )
    form = f"{_FORMS[action_style(env)]}\n\n{guide.actions}{_words_of(env, schemas)}"
    if as_calls:
        how = "Answer each observation with exactly one tool call. Only where you cannot call tools, write instead:"
    else:
        how = "Answer each observation with exactly one action and nothing after it, in this form:"
    rules = guide.rules.replace(*_ONCE) if mode == "compat" else guide.rules
    return f"{rules}{_limit_of(guide, max_rounds)}\n\n{how}\n\n{form}"


def _limit_of(guide: EnvironmentGuide, max_rounds: int | None) -> str:
    limits = [limit for limit in (guide.own_limit, max_rounds) if limit is not None]
    return f" You have at most {pluralize(min(limits), guide.unit)}." if limits else ""


def _words_of(env: str, schemas: Sequence[ToolSchema]) -> str:
    # only Wordle's tool description lists the valid words
    return "".join(f"\n{_function(schema)[1]}" for schema in schemas) if env.lower() == "wordle" else ""


def _actions_of(schemas: Sequence[ToolSchema]) -> str:
    """Describe the tools as text actions; a single tool with one string parameter is described as that string."""
    match [list(_parameters(schema).values()) for schema in schemas]:
        case []:
            return "The action is a text."
        case [[only]] if only.get("type") == "string":
            return f"The action is a text. {_function(schemas[0])[1]}"
    tools = "\n".join(_describe_tool(schema) for schema in schemas)
    return f"{_AS_CALL}\n\nThere are:\n{tools}"


def _describe_tool(schema: ToolSchema) -> str:
    name, description = _function(schema)
    parameters = ", ".join(f"{key}: {_kind(value)}" for key, value in _parameters(schema).items())
    return f"- {name}({parameters}): {description}"


def _function(schema: ToolSchema) -> tuple[str, str]:
    function = as_dict(schema.get("function"))
    return as_text(function.get("name")), as_text(function.get("description"))


def _parameters(schema: ToolSchema) -> dict[str, dict[str, Any]]:
    parameters = as_dict(as_dict(schema.get("function")).get("parameters"))
    return {str(name): as_dict(value) for name, value in as_dict(parameters.get("properties")).items()}


def _kind(parameter: dict[str, Any]) -> str:
    choices = parameter.get("enum")
    if isinstance(choices, list):
        return " or ".join(map(str, choices))
    described = as_text(parameter.get("description"))
    return (as_text(parameter.get("type")) or "any") + (f" ({described})" if described else "")

"""Requests fit the context by the documented rule and contain the instructions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import plugins
from runner.agents.model.react import CHARS_PER_TOKEN, chat_budget, fit_chat, system_prompt, tools_size
from runner.agents.model.reply_parsing import action_style, parse_reply
from runner.config import AgentSettings
from runner.envs import alfworld, maze, wordle
from runner.envs.http.dialects import dialect_for
from runner.envs.http.environment import FreeTextRules
from runner.types import Action, Chat, ToolSchema
from tests.support.examples import examples
from tests.support.fakes import user

OPENING: Chat = [user("the task")]
SCHEMAS: list[ToolSchema] = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Move one cell.",
            "parameters": {
                "type": "object",
                "properties": {
                    "to": {"enum": ["left", "right"]},
                    "count": {"type": "integer", "description": "How far"},
                },
            },
        },
    }
]


def make_turn(number: int, length: int = 1000) -> Chat:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "up", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": f"up {number}", "tool_calls": [call]},
        {"role": "tool", "content": f"at {number} ".ljust(length, "."), "tool_call_id": f"c{number}"},
    ]


def test_a_chat_that_fits_is_sent_unchanged() -> None:
    turns = [make_turn(1), make_turn(2)]
    chat = fit_chat("play", OPENING, turns, 10_000)
    assert chat == [{"role": "system", "content": "play"}, *OPENING, *turns[0], *turns[1]]


def test_the_oldest_turns_are_omitted() -> None:
    turns = [make_turn(number) for number in range(6)]
    system, opening, *rest = fit_chat("play", OPENING, turns, 3600)
    assert (system["content"], opening["content"]) == ("play", "the task\n\n[3 earlier turns left out]")
    assert rest == [message for kept_turn in turns[3:] for message in kept_turn]
    assert [user("the task")] == OPENING
    assert fit_chat("play", OPENING, turns[:4], 3600)[1]["content"] == "the task\n\n[1 earlier turn left out]"


def test_a_huge_observation_is_cut_in_its_middle() -> None:
    huge = "begin" + "x" * 1_000_000 + "end"
    chat = fit_chat("play", OPENING, [make_turn(1), [{"role": "assistant", "content": "look"}, user(huge)]], 4000)
    text = chat[-1]["content"] or ""
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "user"]
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "characters left out]" in text
    assert 3000 < sum(len(message["content"] or "") for message in chat) <= 4000


def test_the_instructions_are_never_cut() -> None:
    rules = "r" * 5000
    chat = fit_chat(rules, [user("o" * 5000)], [], 1000)
    assert chat[0]["content"] == rules
    assert len(chat[1]["content"] or "") <= 400


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 5000), st.integers(1000, 12_000))
def test_calls_stay_paired_and_the_chat_fits_its_budget(lengths: list[int], opening: int, budget: int) -> None:
    turns = [make_turn(number, length) for number, length in enumerate(lengths)]
    chat = fit_chat("play", [user("o" * opening)], turns, budget)
    calls = [call["id"] for message in chat for call in message.get("tool_calls", [])]
    answers = [message["tool_call_id"] for message in chat if message["role"] == "tool"]
    assert calls == answers == [f"c{number}" for number in range(len(turns) - len(calls), len(turns))]
    assert len(calls) >= min(len(turns), 1)
    assert sum(len(message["content"] or "") for message in chat) <= budget


def test_the_budget_excludes_the_answer_and_the_tools() -> None:
    assert chat_budget(AgentSettings(), 0, 4000) == CHARS_PER_TOKEN * 3000
    assert chat_budget(AgentSettings(), 0, 16_384) == CHARS_PER_TOKEN * (16_384 - 2048)
    assert chat_budget(AgentSettings(max_tokens=500), 0, 4000) == CHARS_PER_TOKEN * 3500
    assert chat_budget(AgentSettings(), tools_size(SCHEMAS), 4000) == CHARS_PER_TOKEN * 3000 - len(json.dumps(SCHEMAS))
    assert chat_budget(AgentSettings(max_tokens=4000), tools_size(SCHEMAS * 100), 4000) == CHARS_PER_TOKEN * 1000


def test_the_prompt_of_wordle_has_the_marks_of_its_rules() -> None:
    strict, compat = (system_prompt("Wordle", [], as_calls=False, mode=mode) for mode in ("strict", "compat"))
    assert "b = not in the word, or not once more." in strict
    assert "b = not in the word." in compat


@pytest.mark.parametrize(
    ("env", "max_rounds", "limit"),
    [
        ("Maze", 15, "at most 15 moves."),
        ("Maze", 60, "at most 50 moves."),
        ("ALFWorld", 15, "at most 15 actions."),
        ("Wordle", 15, "at most 6 attempts."),
        ("Wordle", 1, "at most 1 attempt."),
        ("MyEnv", 15, "at most 15 actions."),
    ],
)
def test_the_instructions_name_the_limit_that_is_reached_first(env: str, max_rounds: int | None, limit: str) -> None:
    for as_calls in (True, False):
        text = system_prompt(env, SCHEMAS, as_calls=as_calls, max_rounds=max_rounds)
        assert text.count(limit) == text.count("You have at most") == 1
    assert ("50" in text) == ("50" in limit)


def test_the_limits_of_the_instructions_are_those_of_the_environments() -> None:
    for env, limit in (("Maze", maze.MAX_STEPS), ("ALFWorld", alfworld.MAX_STEPS), ("Wordle", wordle.MAX_GUESSES)):
        assert f"You have at most {limit} " in system_prompt(env, [], as_calls=False, max_rounds=1_000_000)


@pytest.mark.parametrize(
    ("env", "example"),
    [
        ("ALFWorld", "go to fridge 1"),
        ("BabyAI", "pickup red ball 1"),
        ("Maze", "move left"),
        ("SQLGym", "SELECT name FROM members"),
        ("TextCraft", "craft 4 oak planks using 1 oak logs"),
        ("WebShop", "click[Buy Now]"),
        ("Wordle", "crane"),
    ],
)
def test_each_environment_has_its_own_instructions_whose_form_is_parsed(env: str, example: str) -> None:
    environment = plugins.load(plugins.ENVS, env)()
    schemas = environment.get_tool_schemas()
    text = system_prompt(env, schemas, as_calls=False)
    assert text == system_prompt(env.lower(), schemas, as_calls=False)
    assert "You act in the environment" not in text and "tool call" not in text
    assert "exactly one tool call" in system_prompt(env, schemas, as_calls=True)
    assert len(text) < 2000
    form = system_prompt(env, [], as_calls=False).partition("Thought:")[2].partition("\n\n")[0]
    text = f"Thought:{form}".replace("<action>", example).replace("<query>", example)
    action = parse_reply({"role": "assistant", "content": text}, action_style(env), schemas, as_calls=False)
    assert action == Action(text=example)
    if env != "SQLGym":
        assert example in system_prompt(env, [], as_calls=False)
    assert isinstance(environment.parse(example), Action)


def test_the_wordle_instructions_list_the_words() -> None:
    schemas = plugins.load(plugins.ENVS, "Wordle")(mode="compat").get_tool_schemas()
    assert "panic" in system_prompt("Wordle", schemas, as_calls=False)


def test_the_instructions_of_an_unknown_environment_describe_its_tools() -> None:
    text = system_prompt("My\nEnv", SCHEMAS, as_calls=False)
    assert "the environment My␊Env." in text
    assert "- move(to: left or right, count: integer (How far)): Move one cell." in text
    assert '{"name": "…", "arguments": {…}}' in text
    assert "The action is a text." in system_prompt("MyEnv", [], as_calls=False)


@pytest.mark.parametrize(
    ("env", "form"),
    [("SciWorld", "Action: <action>"), ("WebArena", "Action: ```<action>```"), ("Movie", "form:\n\n<action>\n\n")],
)
def test_a_free_text_environment_gets_a_text_prompt(env: str, form: str) -> None:
    dialect = dialect_for(env)
    assert dialect is not None
    text = system_prompt(env, FreeTextRules(dialect).grammar.schemas, as_calls=False)
    assert form in text
    assert dialect.expected in text
    assert "JSON object" not in text


def test_the_instructions_of_sciworld_list_its_commands() -> None:
    dialect = dialect_for("SciWorld")
    assert dialect is not None
    schemas = FreeTextRules(dialect).grammar.schemas
    for as_calls in (True, False):
        text = system_prompt("sciworld", schemas, as_calls=as_calls)
        for command in ("open OBJ", "pour OBJ into OBJ", "use OBJ on OBJ", "go to LOC", "focus on OBJ", "wait"):
            assert f" {command}, " in text, command


@pytest.mark.parametrize(
    "schemas", [[{}], [{"function": None}], [{"function": {"name": "x", "parameters": {"properties": {"a": 1}}}}]]
)
def test_malformed_tool_schemas_do_not_break_the_instructions(schemas: list[ToolSchema]) -> None:
    assert system_prompt("x", schemas, as_calls=True)

"""Environments over HTTP: their rules and names, and the replies of their servers, of any shape."""

from __future__ import annotations

import json

import pytest

from runner.envs.http.dialects import ClientDialect, dialect_for
from runner.envs.http.environment import HttpEnvironment, RewardReader, rules_for
from runner.envs.http.response import Payload, ServerRequest, ServerResponse, decode_response
from runner.envs.http.server import ServerAddress
from runner.errors import ConfigError, EnvironmentFault
from runner.types import Action, InvalidAction, Mode, ToolCall
from tests.support.episodes import rewarded_trajectory

EMBEDDED = ("ALFWorld", "BabyAI", "Maze", "SQLGym", "TextCraft", "WebShop", "Wordle")
SERVED = ("SciWorld", "WebArena", "SearchQA", "Academia", "Movie", "Sheet", "Todo", "Weather")


def existing_dialect(env: str) -> ClientDialect:
    dialect = dialect_for(env)
    assert dialect is not None
    return dialect


def test_dialect_names_are_case_insensitive() -> None:
    for env in (*EMBEDDED, *SERVED):
        assert existing_dialect(env.upper()) == existing_dialect(env.lower())
        assert existing_dialect(env).name == env
        assert (existing_dialect(env).embedded is not None) == (env in EMBEDDED)


@pytest.mark.parametrize("env", EMBEDDED)
@pytest.mark.parametrize("mode", ["strict", "compat"])
def test_the_rules_equal_those_of_the_embedded_environment(env: str, mode: Mode) -> None:
    rules = rules_for(existing_dialect(env), mode)
    over_http = HttpEnvironment(env=env, address=ServerAddress("http://127.0.0.1:1"), mode=mode)
    assert over_http.get_tool_schemas() == rules.grammar.schemas
    assert over_http.parse("move up") == rules.parse("move up")
    n_served = existing_dialect(env).n_tasks if mode == "compat" else None
    assert over_http.n_tasks == (n_served or rules.n_tasks)


def test_the_servers_number_of_tasks_takes_precedence() -> None:
    address = ServerAddress("http://127.0.0.1:1", n_tasks=7)
    assert HttpEnvironment(env="maze", address=address, mode="compat").n_tasks == 7


@pytest.mark.parametrize("env", SERVED)
def test_an_environment_without_rules_has_one_tool_for_any_text(env: str) -> None:
    over_http = HttpEnvironment(env=env, address=ServerAddress("http://127.0.0.1:1"))
    (schema,) = over_http.get_tool_schemas()
    assert schema["function"]["name"] == "act"
    parsed = over_http.parse("look\naround")
    assert isinstance(parsed, Action)
    assert parsed.tool_calls == [ToolCall(id="call_0", name="act", arguments='{"text": "look\\naround"}')]
    assert isinstance(over_http.parse(" "), InvalidAction)
    assert over_http.admissible_actions() is None


@pytest.mark.parametrize(
    ("env", "rewards", "succeeds"),
    [
        ("BabyAI", [0, 0.4], True),
        ("SciWorld", [40, 60], True),
        ("SciWorld", [40, 59], False),
        ("SearchQA", [0.1] * 20, False),
        ("SearchQA", [0, 1], True),
        ("WebArena", [], False),
        ("Weather", [1 / 3, 2 / 3 - 1 / 3, 1 - 2 / 3], True),
        ("Weather", [0.5, 0.25], False),
    ],
)
def test_each_environment_defines_success(env: str, rewards: list[float], succeeds: bool) -> None:
    over_http = HttpEnvironment(env=env, address=ServerAddress("http://127.0.0.1:1"))
    assert over_http.success(rewarded_trajectory(*rewards)) is succeeds


def test_an_environment_without_a_dialect_is_rejected() -> None:
    assert dialect_for("Sokoban") is None
    with pytest.raises(ConfigError, match="'Sokoban' cannot be played over HTTP"):
        HttpEnvironment(env="Sokoban", address=ServerAddress("http://127.0.0.1:1"))


REQUEST = ServerRequest("Maze", "http://127.0.0.1:1/step", b'{"id": 0}')


def read_step(dialect: ClientDialect, reply: ServerResponse) -> tuple[str, float, bool]:
    payload = Payload(REQUEST, decode_response(REQUEST, reply))
    text = payload.text(dialect.observation_at)
    return text, *RewardReader(dialect).read(payload, text)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([1], "returned a list; expected a text at observation; found nothing there."),
        ({}, "returned an object with no fields; expected a text at observation; found nothing there."),
        ({"observation": 5, "info": "gold"}, "with observation, info; expected a text at"),
        ({"observation": "gold", "reward": "gold", "done": True}, "up to 1e+100 at reward; found a text there"),
        ({"observation": "gold", "reward": True, "done": True}, "; found a truth value there."),
        ({"observation": "gold", "reward": 10**400, "done": True}, "; found a number there."),
        ({"observation": "gold", "reward": 1e101, "done": True}, "; found a number there."),
        ({"observation": "gold", "reward": 0, "done": 1}, "true or false at done; found a number there"),
        ({"observation": "gold", "reward": 0, "done": True, "truncated": "gold"}, "at truncated; found a text there"),
    ],
)
def test_the_error_names_the_type_of_a_wrong_value_but_not_the_value(payload: object, message: str) -> None:
    maze = dialect_for("maze")
    assert maze is not None
    with pytest.raises(EnvironmentFault) as caught:
        read_step(maze, ServerResponse(200, "application/json", json.dumps(payload).encode()))
    assert message in str(caught.value)
    assert "gold" not in str(caught.value)


@pytest.mark.parametrize("value", [None, True, "", "x" * 201, 2**63, 1.5, [1]])
def test_an_id_is_a_number_or_a_short_text(value: object) -> None:
    with pytest.raises(EnvironmentFault, match="; expected an id"):
        Payload(REQUEST, value).id(())


def test_deep_json_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match="not JSON"):
        decode_response(REQUEST, ServerResponse(200, "application/json", b"[" * 100_000))


def test_a_fault_is_one_line_with_request_cause_and_advice() -> None:
    request = ServerRequest("Maze\n", "http://h/step", json.dumps({"action": "\x1b[2J" + "x" * 5000}).encode())
    message = str(request.fault("was lost", "Look for it"))
    assert message.startswith('Maze␊: POST http://h/step {"action": "')
    assert message.endswith(" was lost. Look for it")
    assert len(message) < 400
    assert message.isprintable()

from __future__ import annotations

import pytest

from runner.envs.http.dialects import ClientDialect, dialect_for
from runner.envs.http.environment import HttpEnvironment, rules_for
from runner.envs.http.server import ServerAddress
from runner.errors import ConfigError
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
        ("BabyAI", [-0.125], False),
        ("SciWorld", [40, 60], True),
        ("SciWorld", [40, 59], False),
        ("SearchQA", [0.1] * 20, False),
        ("SearchQA", [0, 1], True),
        ("WebArena", [], False),
        ("Weather", [1 / 3, 2 / 3 - 1 / 3, 1 - 2 / 3], True),
        ("Weather", [0.5, 0.25], False),
        ("WebShop", [0.75], False),
    ],
)
def test_each_environment_defines_success(env: str, rewards: list[float], succeeds: bool) -> None:
    over_http = HttpEnvironment(env=env, address=ServerAddress("http://127.0.0.1:1"))
    assert over_http.success(rewarded_trajectory(*rewards)) is succeeds


def test_an_environment_without_a_dialect_is_rejected() -> None:
    assert dialect_for("Sokoban") is None
    with pytest.raises(ConfigError, match="'Sokoban' cannot be played over HTTP"):
        HttpEnvironment(env="Sokoban", address=ServerAddress("http://127.0.0.1:1"))

from __future__ import annotations

import pytest

from runner.envs.http.server import ServerAddress, ServerIdentity, identify_server
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:36003", "http://127.0.0.1:36003"),
        ("http://[::1]:1/", "http://[::1]:1"),
        ("https://me:word@host/below/", "https://host/below"),
    ],
)
def test_the_base_url_has_no_login_and_no_trailing_slash(url: str, base: str) -> None:
    assert ServerAddress(url).base == base


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://host", ""),
        ("http://me:wo%3Ard@host", "Basic bWU6d286cmQ="),
        ("http://me@host", "Basic bWU6"),
        ("http://:a-token@host", "Bearer a-token"),
    ],
)
def test_the_login_of_a_url_becomes_the_authorization_header(url: str, header: str) -> None:
    assert ServerAddress(url).login.get("Authorization", "") == header


def test_the_login_of_a_url_is_not_shown() -> None:
    address = ServerAddress("http://me:hidden@host:1")
    assert "hidden" not in f"{address!r} {address} {address.base}"
    with pytest.raises(ConfigError) as caught:
        _ = ServerAddress("http://:hidden%0Aword@host:1").login
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "host:1", "ftp://host", "http://", "http://host:99999", "http://host?x=1", "http://host#x", "http://[1"]
)
def test_an_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="Correct its base_url"):
        _ = ServerAddress(url).base


@pytest.mark.parametrize(
    ("env", "payload", "expected"),
    [
        ("maze", "AgentGym Console 0.1.0: Maze (strict, x)", ServerIdentity("console", "Maze", "strict", "x")),
        ("SQLGym", "AgentGym Console 1.0: SQLGym (compat, y)", ServerIdentity("console", "SQLGym", "compat", "y")),
        ("Wordle", "AgentGym Console 0.1.0: Maze (strict, x)", ServerIdentity("wrong", "Maze", "strict", "x")),
        ("BabyAI", "This is environment BabyAI.", ServerIdentity("agentgym", "BabyAI", "compat")),
        ("Maze", "This is environment LMRL-Gym.", ServerIdentity("agentgym", "LMRL-Gym", "compat")),
        ("SciWorld", "This is environment ScienceWorld.", ServerIdentity("agentgym", "ScienceWorld", "compat")),
        ("Sokoban", "This is environment Sokoban.", ServerIdentity("agentgym", "Sokoban", "compat")),
        ("SQLGym", "ok", ServerIdentity("agentgym", mode="compat")),
        ("BabyAI", "This is environment TextCraft.", ServerIdentity("wrong", "TextCraft", "compat")),
        ("SQLGym", "This is environment TextCraft.", ServerIdentity("wrong", "TextCraft", "compat")),
        ("BabyAI", "ok", ServerIdentity("wrong")),
        ("BabyAI", "Welcome!", ServerIdentity("unknown")),
        ("Sokoban", "ok", ServerIdentity("unknown")),
        ("BabyAI", {"status": "ok"}, ServerIdentity("wrong")),
        ("BabyAI", None, ServerIdentity("wrong")),
        ("BabyAI", "x" * 1000, ServerIdentity("wrong")),
    ],
)
def test_a_server_is_identified_by_its_greeting(env: str, payload: object, expected: ServerIdentity) -> None:
    assert identify_server(env, payload) == expected


def test_a_greeting_is_safe_to_show() -> None:
    identity = identify_server("maze", "AgentGym Console 0.1.0: Maze (strict, \x1b[2J\u202e)")
    assert identity.label == "␛[2J\\u{202e}"

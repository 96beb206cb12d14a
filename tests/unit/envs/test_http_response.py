from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.envs.http.dialects import _ROWS, ClientDialect, dialect_for
from runner.envs.http.environment import RewardReader
from runner.envs.http.response import Payload, ServerRequest, ServerResponse, decode_response
from runner.errors import EnvironmentFault

REQUEST = ServerRequest("Maze", "http://127.0.0.1:1/step", b'{"id": 0}')
NAMES = st.sampled_from(["observation", "reward", "done", "truncated", "terminated", "state", "score", "error", "info"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=6),
    max_leaves=8,
)


def read_step(dialect: ClientDialect, reply: ServerResponse) -> tuple[str, float, bool]:
    payload = Payload(REQUEST, decode_response(REQUEST, reply))
    text = payload.text(dialect.observation_at)
    return text, *RewardReader(dialect).read(payload, text)


@given(st.sampled_from(_ROWS), st.integers(0, 1000), st.text(max_size=20), st.binary(max_size=60))
def test_any_invalid_bytes_raise_a_fault(dialect: ClientDialect, status: int, kind: str, body: bytes) -> None:
    with pytest.raises(EnvironmentFault):
        read_step(dialect, ServerResponse(status, kind, body))


@given(st.sampled_from(_ROWS), st.sampled_from([200, 422, 500]), VALUES)
def test_any_json_is_a_step_or_raises_a_fault(dialect: ClientDialect, status: int, value: Any) -> None:  # noqa: ANN401
    try:
        text, reward, done = read_step(dialect, ServerResponse(status, "application/json", json.dumps(value).encode()))
    except EnvironmentFault as exc:
        assert "\n" not in str(exc)
        return
    assert isinstance(text, str)
    assert isinstance(done, bool)
    assert math.isfinite(reward)


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

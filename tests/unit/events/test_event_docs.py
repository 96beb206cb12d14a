from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator, ValidationError

from runner.events import subjects
from runner.events.codec import encode
from runner.events.control import ARGS, RESULTS
from runner.events.durable import FieldStatus
from runner.events.live import Heartbeat, LiveBatch
from scripts.build_event_docs import DOCS, files, schemas
from tests.support.schemas import validate


def test_the_generated_documents_are_current_and_have_every_subject_and_operation() -> None:
    expected = files()
    existing = {f"schemas/{path.name}" for path in (DOCS / "schemas").iterdir()} | {"data/events.md"}
    assert existing == set(expected), "run: python -m scripts.build_event_docs"
    for name, text in expected.items():
        assert (DOCS / name).read_text("utf-8") == text, f"docs/{name}: run python -m scripts.build_event_docs"
    assert all(f"`{op}`" in expected["data/events.md"] for op in ARGS)
    assert set(RESULTS) == set(ARGS)
    live, built = {f"agentgym.live.{channel}.v1" for channel in subjects.LIVE_CHANNELS}, schemas()
    assert set(built) == {*subjects.DURABLE, *live, "agentgym.control.request", "agentgym.control.reply"}
    for schema in built.values():
        Draft202012Validator.check_schema(schema)


def test_a_channel_schema_accepts_only_its_own_items() -> None:
    at = datetime.now(UTC)
    payload = encode(LiveBatch(node="n", boot="b", dropped=0, items=[Heartbeat(at=at)]))
    validate(subjects.live_subject("health", "n"), payload)
    with pytest.raises(ValidationError):
        validate(subjects.live_subject("span", "n"), payload)


def test_additional_fields_are_allowed_and_missing_fields_rejected() -> None:
    event = FieldStatus(node="n", config="p", status="idle", role="node", boot="b", pid=1)
    fields = msgspec.to_builtins(event)
    validate(subjects.FIELD_STATUS, json.dumps({**fields, "more": 1}).encode())
    del fields["config"]
    with pytest.raises(ValidationError):
        validate(subjects.FIELD_STATUS, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("request_", "valid"),
    [
        ({"id": "1", "op": "list"}, True),
        ({"id": "1", "op": "start", "args": {"batch_id": "x", "envs": ["Maze"]}}, True),
        ({"id": "1", "op": "start", "args": {"envs": ["Maze"]}}, False),
        ({"id": "1", "op": "start"}, False),
        ({"id": "1", "op": "pause", "args": {"path": "/"}}, False),
        ({"id": "1", "op": "exec"}, False),
    ],
)
def test_requests_are_validated_by_their_operation(request_: dict[str, Any], valid: bool) -> None:
    payload = json.dumps(request_).encode()
    if valid:
        validate("agentgym.control.request", payload)
    else:
        with pytest.raises(ValidationError):
            validate("agentgym.control.request", payload)


def test_infinity_is_not_valid_json() -> None:
    with pytest.raises(AssertionError):
        validate(subjects.EPISODE_COMPLETED, b'{"reward": Infinity}')

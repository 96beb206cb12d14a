"""The codec of events, and their generated documents and schemas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from runner.events import subjects
from runner.events.codec import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_RAW_BYTES,
    MAX_RAW_ITEMS,
    Decoded,
    DurableRow,
    LiveRow,
    RawRow,
    decode,
    encode,
    headers_for,
    message_id,
)
from runner.events.control import ARGS
from runner.events.durable import DURABLE_TYPES, BatchCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.live import Heartbeat, Host, LiveBatch
from runner.events.subjects import DurableNames
from runner.types import Outcome, Tokens
from scripts.build_event_docs import DOCS, files, schemas
from scripts.event_texts import RESULTS
from tests.support.examples import examples
from tests.support.schemas import validate

NAMES = DurableNames()
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEALTH = subjects.live_subject("health", "n")
EPISODE = EpisodeCompleted(
    episode_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
    env="BabyAI",
    reward=0.5,
    rounds=4,
    duration_s=1.5,
    success=True,
    score=0.5,
    duration_sec=1.5,
    outcome=Outcome.SUCCESS,
    agent="oracle",
    model=None,
    task_index=3,
    tokens=Tokens(1, 2),
    batch_id="01ARZ3NDEKTSV4RRFFQ69G5FAW",
    node="n",
    profile="p",
)
BATCH = BatchCompleted(
    batch_id="01ARZ3NDEKTSV4RRFFQ69G5FAW",
    env="BabyAI",
    n_episodes=0,
    mean_reward=None,
    success_rate=None,
    status="interrupted",
    agent="oracle",
    model=None,
    node="n",
    battery_id=None,
)
STATUS = FieldStatus(node="n", config="p", status="idle", role="node", boot="b", pid=1)
ORIGINAL = {
    **{"env": "Maze", "success": True, "score": 0.25, "rounds": 3, "duration_sec": 2.5},
    **{"model": "m", "node": "4090"},
}
MINIMAL: dict[str, dict[str, Any]] = {
    subjects.EPISODE_COMPLETED: {"episode_id": "e1", "env": "Maze", "reward": 1.0, "rounds": 3, "duration_s": 2.5},
    subjects.BATCH_COMPLETED: {"batch_id": "b1", "env": "Maze", "n_episodes": 4, "mean_reward": 0.5},
    subjects.FIELD_STATUS: {"node": "4090", "config": "p", "status": "started"},
}
FIELDS: dict[str, Any] = msgspec.to_builtins(EPISODE)


def decode_payload(
    payload: bytes, subject: str = subjects.EPISODE_COMPLETED, headers: dict[str, str] | None = None
) -> Decoded:
    return decode(subject, headers, payload, NAMES)


def rejection_reason(
    payload: bytes, subject: str = subjects.EPISODE_COMPLETED, headers: dict[str, str] | None = None
) -> str:
    row = decode_payload(payload, subject, headers)
    assert isinstance(row, RawRow), row
    assert row.size == len(payload)
    assert row.payload == payload[:MAX_RAW_BYTES]
    return row.reason


@pytest.mark.parametrize(
    ("event", "subject", "event_id"),
    [
        (EPISODE, subjects.EPISODE_COMPLETED, f"episode:{EPISODE.episode_id}"),
        (BATCH, subjects.BATCH_COMPLETED, f"batch:{BATCH.batch_id}"),
        (STATUS, subjects.FIELD_STATUS, ""),
    ],
)
def test_durable_events_survive_encoding_and_decoding(event: DurableEvent, subject: str, event_id: str) -> None:
    payload = encode(event)
    validate(subject, payload)
    assert decode_payload(payload, subject) == DurableRow(event=event, id=event_id, type=subject)
    headers = headers_for(subject, "given", "n", AT)
    assert decode_payload(payload, subject, headers) == DurableRow(event=event, id="given", type=subject)
    assert decode_payload(payload, "any.other.subject", headers) == DurableRow(event=event, id="given", type=subject)


def test_headers_follow_cloudevents() -> None:
    assert headers_for("t", "i", "n", AT) == {
        "ce-specversion": "1.0",
        "ce-type": "t",
        "ce-id": "i",
        "ce-source": "n",
        "ce-time": "2026-01-02T03:04:05+00:00",
        "content-type": "application/json",
        "Nats-Msg-Id": "i",
    }


def test_the_subject_names_of_a_profile_select_the_event_type() -> None:
    names = DurableNames(episode_completed="lab.episodes")
    assert names.subject_of(subjects.EPISODE_COMPLETED) == "lab.episodes"
    assert names.subject_of(subjects.FIELD_STATUS) == subjects.FIELD_STATUS
    row = decode("lab.episodes", None, encode(EPISODE), names)
    assert isinstance(row, DurableRow)
    assert isinstance(decode(subjects.EPISODE_COMPLETED, None, encode(EPISODE), names), DurableRow)
    assert isinstance(decode("lab.episodes", None, encode(EPISODE), NAMES), RawRow)


def test_the_message_id_is_read_from_either_header_in_any_case() -> None:
    assert message_id({"CE-Id": "a", "Nats-Msg-Id": "b"}) == "a"
    assert message_id({"nats-msg-id": "b"}) == "b"
    assert message_id({"ce-id": "x" * 1000}) == ""
    assert message_id(None) == ""


def test_additional_fields_are_ignored() -> None:
    row = decode_payload(json.dumps({**FIELDS, "more": [1, {"a": None}]}).encode())
    assert isinstance(row, DurableRow)
    assert row.event == EPISODE


def event_of(fields: dict[str, Any], subject: str = subjects.EPISODE_COMPLETED) -> Any:  # noqa: ANN401
    row = decode_payload(json.dumps(fields).encode(), subject)
    assert isinstance(row, DurableRow), row
    return row.event


def test_events_of_other_field_runners_leave_fields_out() -> None:
    episode = event_of(MINIMAL[subjects.EPISODE_COMPLETED])
    assert (episode.episode_id, episode.reward, episode.success, episode.outcome) == ("e1", 1.0, None, None)
    assert (episode.node, episode.agent, episode.tokens, episode.task_index) == (None,) * 4
    batch = event_of(MINIMAL[subjects.BATCH_COMPLETED], subjects.BATCH_COMPLETED)
    assert (batch.mean_reward, batch.success_rate, batch.n_rated, batch.status) == (0.5, None, None, "completed")
    status = event_of(MINIMAL[subjects.FIELD_STATUS], subjects.FIELD_STATUS)
    assert (status.status, status.role, status.boot) == ("started", None, None)
    for subject, fields in MINIMAL.items():
        validate(subject, json.dumps(fields).encode())
        for name in fields.keys() - {"episode_id"}:
            part = {key: value for key, value in fields.items() if key != name}
            assert f"`{name}`" in rejection_reason(json.dumps(part).encode(), subject)


def test_episodes_of_the_original_field_runner_have_other_names_and_no_id() -> None:
    for change in ({}, {"gpu": "4090"}, {"episode_id": None}, {"rounds": 3.0, "success": 1}):
        event = event_of({**ORIGINAL, **change})
        assert (event.episode_id, event.reward, event.rounds, event.duration_s) == ("", 0.25, 3, 2.5)
        assert (event.success, event.score, event.duration_sec, event.node) == (True, 0.25, 2.5, "4090")
    assert event_of({**ORIGINAL, "episode_id": "x", "reward": 0.5}).reward == 0.5
    assert "reward" in rejection_reason(json.dumps({**ORIGINAL, "score": "high"}).encode())
    assert "NaN" in rejection_reason(json.dumps({**ORIGINAL, "score": "nan"}).encode())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace('"reward": 0.5', '"reward": 1e999'), "out of range"),
        (lambda text: text.replace('"reward": 0.5', '"reward": NaN'), "NaN"),
        (lambda text: text.replace('"reward": 0.5', '"reward": -Infinity'), "Infinity"),
        (lambda text: text.replace('"reward": 0.5', '"reward": "high"'), "Expected `float`"),
        (lambda text: text.replace('"reward": 0.5', '"reward": 0.5, "reward": 0.7'), "duplicate field"),
        (lambda text: text.replace('"prompt": 1', '"prompt": 1, "prom\\u0070t": 2'), "duplicate field"),
        (lambda text: text.replace('"rounds": ', '"round": '), "missing required field `rounds`"),
        (lambda text: text.replace('"outcome": "success"', '"outcome": "great"'), "Invalid enum value"),
        (lambda text: text[:-1], "not JSON"),
        (lambda text: text + "}", "not JSON"),
        (lambda text: "", "not JSON"),
        (lambda text: "[]", "Expected `object`"),
        (lambda text: "null", "Expected `object`"),
    ],
)
def test_an_invalid_payload_becomes_a_raw_row_with_the_reason(change: Callable[[str], str], expected: str) -> None:
    text = json.dumps(FIELDS)
    assert change(text) != text
    assert expected in rejection_reason(change(text).encode())


def test_invalid_utf8_is_rejected_even_in_ignored_fields() -> None:
    assert rejection_reason(json.dumps(FIELDS).encode()[:-1] + b', "more": "\xff"}') == "not UTF-8"


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"\\"[":'])
@pytest.mark.parametrize("subject", [subjects.EPISODE_COMPLETED, HEALTH])
def test_deep_nesting_is_rejected(opening: str, subject: str) -> None:
    closing = "".join({"[": "]", "{": "}"}[c] for c in reversed(opening.replace('"\\"["', "")) if c in "[{")
    levels = len(closing)
    deep = opening * (MAX_DEPTH // levels + 1) + "1" + closing * (MAX_DEPTH // levels + 1)
    assert rejection_reason(deep.encode(), subject) == f"nested deeper than {MAX_DEPTH}"
    assert rejection_reason(opening.encode() * 100_000, subject) == f"nested deeper than {MAX_DEPTH}"


def test_deep_nesting_in_a_timestep_is_rejected() -> None:
    step = {
        **{"kind": "timestep", "at": AT.isoformat(), "episode_id": "e", "seq": 0, "index": 0, "actor": "agent"},
        **{"action": {}, "valid": True, "reward": 0, "done": False, "model_s": 0, "env_s": 0, "observation": []},
    }
    for n_levels, n_read in ((10, 1), (MAX_DEPTH, 0)):
        chats = json.loads('[[{"content": ' + "[" * n_levels + "]" * n_levels + "}]]")
        batch = {"node": "n", "boot": "b", "dropped": 0, "items": [{**step, "chats": chats}]}
        row = decode_payload(json.dumps(batch).encode(), subjects.live_subject("timestep", "n"))
        assert (len(row.batch.items) if isinstance(row, LiveRow) else 0) == n_read


def test_the_maximum_depth_is_decoded() -> None:
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert isinstance(decode_payload(json.dumps(FIELDS).encode()[:-1] + f', "more": {inner}}}'.encode()), DurableRow)
    wide = json.dumps({**FIELDS, "more": [[] for _ in range(1000)], "text": "[" * 500 + '\\"['}).encode()
    assert isinstance(decode_payload(wide), DurableRow)


def test_the_payload_size_is_limited() -> None:
    padding = MAX_BYTES - len(json.dumps({**FIELDS, "more": ""}))
    assert isinstance(decode_payload(json.dumps({**FIELDS, "more": "x" * padding}).encode()), DurableRow)
    assert (
        rejection_reason(json.dumps({**FIELDS, "more": "x" * (padding + 1)}).encode())
        == f"larger than {MAX_BYTES} bytes"
    )


@pytest.mark.parametrize(
    ("subject", "headers", "expected"),
    [
        ("agentgym.episode.completed.v2", None, "unknown version"),
        ("agentgym.live.health.v3.n", None, "unknown version"),
        (subjects.EPISODE_COMPLETED, {"ce-type": "agentgym.episode.completed.v2"}, "unknown version"),
        ("weather.today", None, "unknown subject"),
        ("agentgym.live.smell.v1.n", None, "unknown subject"),
    ],
)
def test_unknown_versions_and_subjects_are_raw(subject: str, headers: dict[str, str] | None, expected: str) -> None:
    assert rejection_reason(encode(EPISODE), subject, headers) == expected


def test_live_batches_survive_encoding_and_decoding() -> None:
    batch = LiveBatch(node="n", boot="b", dropped=2, items=[Heartbeat(at=AT), Host(at=AT, cpu=1.0, ram=2.0, gpu=None)])
    payload = encode(batch)
    validate(HEALTH, payload)
    row = decode_payload(payload, HEALTH)
    assert isinstance(row, LiveRow)
    assert (row.batch.node, row.batch.boot, row.batch.dropped, row.batch.items) == ("n", "b", 2, batch.items)


def test_undecodable_items_do_not_affect_the_others() -> None:
    payload = (
        b'{"node":"n","boot":"b","dropped":0,"items":['
        b'{"kind":"heartbeat","at":"2026-01-02T03:04:05Z"},'
        b'{"kind":"smell","at":"2026-01-02T03:04:05Z"},'
        b'{"kind":"heartbeat","at":"2026-01-02T03:04:05"}]}'
    )
    row = decode_payload(payload, HEALTH)
    assert isinstance(row, LiveRow)
    assert row.batch.items == [Heartbeat(at=AT)]
    assert ["smell" in row.raw[0].reason, "timezone" in row.raw[1].reason] == [True, True]
    assert row.raw[0].payload == b'{"kind":"smell","at":"2026-01-02T03:04:05Z"}'


def test_decoding_stops_after_the_maximum_number_of_raw_items() -> None:
    items = b"0," * (2 * MAX_RAW_ITEMS) + b'{"kind":"heartbeat","at":"2026-01-02T03:04:05Z"}'
    row = decode_payload(b'{"node":"n","boot":"b","dropped":0,"items":[%s]}' % items, HEALTH)
    assert isinstance(row, LiveRow)
    assert (len(row.raw), row.batch.items) == (MAX_RAW_ITEMS, [])


def test_reasons_are_one_safe_line() -> None:
    text = json.dumps(FIELDS).replace('"outcome": "success"', '"outcome": "\\u001b[2J\\n"')
    assert "\x1b" not in rejection_reason(text.encode())
    assert "\n" not in rejection_reason(text.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(list(FIELDS)) | st.text(), inner),
    max_leaves=20,
)
SUBJECT = st.sampled_from([*subjects.DURABLE, HEALTH, "agentgym.live.timestep.v1.n"]) | st.text()
HEADERS = st.none() | st.dictionaries(st.sampled_from(["ce-type", "ce-id", "Nats-Msg-Id"]) | st.text(), st.text())


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(subject=SUBJECT, headers=HEADERS, payload=st.binary())
def test_arbitrary_bytes_do_not_crash_the_decoder(subject: str, headers: dict[str, str] | None, payload: bytes) -> None:
    assert decode_payload(payload, subject, headers) is not None


@settings(max_examples=examples(40), deadline=None)
@given(
    subject=SUBJECT, headers=HEADERS, changes=st.dictionaries(st.sampled_from(list(FIELDS)), JSON), cut=st.integers()
)
def test_arbitrary_json_does_not_crash_the_decoder(
    subject: str, headers: dict[str, str] | None, changes: dict[str, Any], cut: int
) -> None:
    payload = json.dumps({**FIELDS, **changes}).encode()
    for part in (payload, payload[: cut % len(payload)]):
        decode_payload(part, subject, headers)


NAMES_OF_FIELDS = sorted({name for event in DURABLE_TYPES.values() for name in event.__struct_fields__})
NUMBERS = st.sampled_from([0, 1, 3.0, -1, 2**64, 10**400, 1e308, True, "1", "1e999", "nan", "x" * 300])


@settings(max_examples=examples(150), deadline=None)
@given(
    subject=st.sampled_from(subjects.DURABLE),
    fields=st.dictionaries(st.sampled_from(NAMES_OF_FIELDS) | st.text(), JSON | NUMBERS),
    base=st.sampled_from([{}, ORIGINAL, *MINIMAL.values()]),
)
def test_any_object_is_an_event_or_has_a_reason(subject: str, fields: dict[str, Any], base: dict[str, Any]) -> None:
    row = decode_payload(json.dumps({**base, **fields}).encode(), subject)
    if isinstance(row, RawRow):
        assert row.reason
        return
    assert isinstance(row, DurableRow) and isinstance(row.event, DURABLE_TYPES[subject])
    assert all(math.isfinite(value) for value in msgspec.structs.astuple(row.event) if isinstance(value, float))
    for name in {"success", "success_rate", "n_rated", "agent", "boot"} - {*base, *fields}:
        assert getattr(row.event, name, None) is None


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet='[]{}"\\a,:1'))
def test_brackets_inside_strings_do_not_count_as_nesting(text: str) -> None:
    payload = json.dumps({**FIELDS, "more": text * 30}).encode()
    assert isinstance(decode_payload(payload), DurableRow)


def test_the_generated_documents_are_current_and_have_every_subject_and_operation() -> None:
    expected = files()
    existing = {f"schemas/{path.name}" for path in (DOCS / "schemas").iterdir()} | {"data/events.md"}
    assert existing == set(expected), "run: python -m scripts.build_event_docs"
    for name, text in expected.items():
        assert (DOCS / name).read_text("utf-8") == text, f"docs/{name}: run python -m scripts.build_event_docs"
    assert all(f"`{op}`" in expected["data/events.md"] for op in ARGS)
    assert set(RESULTS) == set(ARGS)
    live, built = {f"agentgym.live.{channel}.v1" for channel in subjects.LIVE_CHANNELS}, schemas()
    control = {"agentgym.control.request", "agentgym.control.reply", "agentgym.ctl.v1"}
    assert set(built) == {*subjects.DURABLE, *live, *control}
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

"""What agents and environments return, as live items of bounded size that a console decodes.

The input is a byte by whose value all texts are repeated, and the JSON of a step: chats, observation, action.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from runner.episode.live_items import timestep_item
from runner.events.codec import LiveRow, decode, decode_item
from runner.events.live import MAX_ITEM, MAX_TEXT, Timestep
from runner.events.subjects import DurableNames, live_subject
from runner.types import Action, TimeStep, TimestepPlayed, ToolCall
from tests.fuzz.targets.episode_file import EPISODE

TOKENS = (
    b'"chats":[[{"role":"user","content":"a"}]]',
    b'"text":"a"',
    b'"calls":[{"id":"c","name":"n","arguments":"{}"}]',
)
AT = datetime(2026, 3, 4, tzinfo=UTC)
MAX_REPEATS = 8_000
OVERHEAD = 4 * MAX_TEXT + 4_096
"""Bytes of an item besides its messages: endpoint, model, warnings and numbers."""


class _Call(msgspec.Struct):
    id: str
    name: str
    arguments: str


class _Step(msgspec.Struct):
    chats: list[list[object]] = []
    observation: list[object] = []
    reset_observation: list[object] | None = None
    text: str | None = None
    calls: list[_Call] = []
    reward: float = 0.0
    endpoint: str | None = None


def check(data: bytes) -> None:
    try:
        step = msgspec.convert(_repeated(msgspec.json.decode(data[1:]), (data[0] if data else 0) * 40 + 1), _Step)
    except (ValueError, RecursionError):
        return
    item = timestep_item(_played(step))
    assert len(item) <= MAX_ITEM + OVERHEAD
    payload = b'{"node":"n","boot":"b","dropped":0,"items":[' + bytes(item) + b"]}"
    row = decode(live_subject("timestep", "n"), None, payload, DurableNames())
    assert isinstance(row, LiveRow) and not row.raw, row
    (timestep,) = map(decode_item, row.batch.items)
    assert isinstance(timestep, Timestep), timestep
    messages = [message for chat in timestep.chats for message in chat]
    for message in (*messages, *timestep.observation, *(timestep.reset_observation or ())):
        assert all(len(text.encode()) <= MAX_TEXT for text in message.values() if isinstance(text, str))
    n_sent = len(messages) + len(timestep.observation) + len(timestep.reset_observation or ())
    n_all = sum(map(len, step.chats)) + len(step.observation) + len(step.reset_observation or ())
    assert n_sent + timestep.left_out == n_all
    assert timestep.action.text is None or len(timestep.action.text.encode()) <= MAX_TEXT


def _repeated(value: object, times: int) -> object:
    match value:
        case str():
            return value * min(times, MAX_REPEATS)
        case list():
            return [_repeated(item, times) for item in value]
        case dict():
            return {key: _repeated(item, times) for key, item in value.items()}
    return value


def _played(step: _Step) -> TimestepPlayed:
    calls = [ToolCall(call.id, call.name, call.arguments) for call in step.calls]
    fields = msgspec.structs.asdict(step)
    return TimestepPlayed(
        at=AT,
        episode_id=EPISODE,
        seq=1,
        reset_observation=fields["reset_observation"],
        step=TimeStep(
            index=0,
            chats=fields["chats"],
            action=Action(step.text, calls),
            observation=fields["observation"],
            reward=step.reward,
            done=False,
            available_tool_schemas=[],
            model_s=0.5,
            env_s=0.25,
            endpoint=step.endpoint,
        ),
    )

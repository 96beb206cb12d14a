"""Bus messages: durable events with CloudEvents headers, live items, and messages of others.

The input is the subject, lines ``name: value`` with headers, an empty line, and the payload.
"""

from __future__ import annotations

from datetime import UTC, datetime

from runner.cli.watch import json_lines, plain_lines
from runner.events.codec import (
    MAX_ID,
    MAX_RAW_BYTES,
    DurableRow,
    LiveRow,
    RawRow,
    decode,
    decode_item,
    encode,
    message_id,
)
from runner.events.live import LiveBatch
from runner.events.subjects import DURABLE, LIVE_CHANNELS, DurableNames, live_subject
from runner.subscribe.messages import BusMessage
from runner.util.display_text import masker
from tests.fuzz.oracles import check_displayable, split_head

TOKENS = (
    *(subject.encode() for subject in DURABLE),
    *(live_subject(channel, "n").encode() for channel in LIVE_CHANNELS),
    b"ce-type: ",
    b"ce-id: ",
    b"Nats-Msg-Id: ",
    b".v2",
    b'"kind":"token"',
)
NAMES = DurableNames(episode_completed="field.done")
AT = datetime(2026, 3, 4, tzinfo=UTC)
MASK = masker()


def check(data: bytes) -> None:
    head, payload = split_head(data)
    subject, headers = head[0], dict(line.partition(": ")[::2] for line in head[1:])
    row = decode(subject, headers, payload, NAMES)
    assert len(message_id(headers)) <= MAX_ID
    match row:
        case RawRow():
            _check_raw(row)
            assert row.size == len(payload)
        case DurableRow():
            assert decode(row.type, headers, encode(row.event), DurableNames()) == row
        case LiveRow():
            _check_live(row)
    _check_printed(BusMessage(subject=subject, headers=headers, decoded=row, time=AT))


def _check_raw(row: RawRow) -> None:
    check_displayable(row.reason)
    assert row.reason and len(row.reason) <= 200 and len(row.payload) <= MAX_RAW_BYTES


def _check_live(row: LiveRow) -> None:
    for raw in row.raw:
        _check_raw(raw)
    items = []
    for item in map(decode_item, row.batch.items):
        if isinstance(item, RawRow):
            _check_raw(item)
        else:
            items.append(item)
    batch = LiveBatch(node=row.batch.node, boot=row.batch.boot, dropped=row.batch.dropped, items=items)
    again = decode(live_subject("episode", "n"), None, encode(batch), NAMES)
    assert isinstance(again, LiveRow) and not again.raw
    assert [decode_item(item) for item in again.batch.items] == items


def _check_printed(message: BusMessage) -> None:
    for line in plain_lines(message, MASK):
        check_displayable(line)
    for line in json_lines(message, MASK):
        assert line.isascii() and line.isprintable()

"""Any file of another tool: its format, its items, and the episodes of each item in every format; small limits.

The input is the content of the file.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from runner.errors import StoreError
from runner.formats.atif import encode_atif
from runner.formats.format import Format
from runner.formats.importing import decoded_episodes, keep_difference
from runner.formats.reading import Item, Limits, Malformed, json_items
from runner.formats.recognition import read_formats, recognise
from runner.store import EpisodeRecord
from runner.store.safe_json import encode
from runner.util.clock import is_ulid
from runner.util.json_accessors import decode_json
from tests.fuzz.oracles import scratch_folder

SHARE = 3
TOKENS = (
    *(
        b'"schema_version":"ATIF-v1.7"',
        b'"steps":[',
        b'"source":"agent"',
        b'"tool_calls":[',
        b'"observation":{"results":[',
    ),
    *(b'"nodes":[', b'"parent":0', b'"message":{"role":"assistant","content":"', b'"calls":[{"node":1'),
    *(b'"conversations":[', b'{"from":"gpt","value":"', b'"item_id":"babyai_1"', b'"messages":[', b'"chosen":['),
    *(
        b'"responses_create_params":{',
        b'"output":[{"type":"function_call"',
        b'"reward":1e999',
        b'"extra":{"agentgym":{',
    ),
)
LIMITS = Limits(item_bytes=2_000, item_values=200, branches=4, files=4)
PATH = scratch_folder("foreign_file") / "file.jsonl"
TIME = datetime(2026, 1, 2, tzinfo=UTC)
FORMATS = [each for each in read_formats() if each.reader is not None and each.reader.items is json_items]


def check(data: bytes) -> None:
    PATH.write_bytes(data)
    recognise(PATH)
    try:
        items = list(json_items(PATH, LIMITS))
    except StoreError:
        return
    for item in items:
        assert isinstance(item, Malformed) or len(item.data) <= LIMITS.item_bytes
        assert 0 <= item.place.start <= item.place.start + item.place.size <= len(data)
        for form in FORMATS:
            if isinstance(item, Item):
                _check_item(item, form)


def _check_item(item: Item, form: Format) -> None:
    assert form.reader is not None
    assert form.reader.read(item.place, LIMITS) == item.data
    ids = set()
    try:
        for found in decoded_episodes(item, form, LIMITS, TIME):
            record = found.record
            assert is_ulid(record.episode_id)
            assert record.episode_id not in ids
            ids.add(record.episode_id)
            record = keep_difference(record, found.draft, form)
            stored = msgspec.json.decode(encode(record), type=EpisodeRecord)
            assert stored.episode_id == record.episode_id
            if form.name == "atif" and found.number == 0 and _is_storable(found.draft.original):
                assert _plain(encode_atif(stored)) == _plain(found.draft.original)
    except ValueError:
        return


def _is_storable(value: object) -> bool:
    """Return whether a value needs no repair: lone surrogates become text, and then deep nesting is cut."""
    try:
        msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError):
        return False
    return True


def _plain(value: object) -> object:
    return decode_json(encode(value))

"""Any file of another tool: its format, its items, and the episodes of each item in every format; small limits.

The input is the content of the file.
"""

from __future__ import annotations

from runner.errors import StoreError
from runner.formats.format import readable_formats, recognise
from runner.formats.reading import Item, json_items
from tests.fuzz.foreign_items import LIMITS, check_item, check_place
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
PATH = scratch_folder("foreign_file") / "file.jsonl"
FORMATS = [each for each in readable_formats().values() if each.decode is not None and each.items is json_items]


def check(data: bytes) -> None:
    PATH.write_bytes(data)
    recognise(PATH)
    try:
        items = list(json_items(PATH, LIMITS))
    except StoreError:
        return
    for item in items:
        check_place(item, len(data))
        if isinstance(item, Item):
            check_item(item, FORMATS)

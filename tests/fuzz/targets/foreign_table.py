"""The rows of a table, which its own process reads with pyarrow: a row of JSON with values of any types per line."""

from __future__ import annotations

from runner.formats.parquet import FORMAT
from runner.formats.reading import Item, Place
from runner.util.json_accessors import as_dict, decode_json
from runner.util.safe_values import encode
from tests.fuzz.foreign_items import LIMITS, check_decoded
from tests.fuzz.oracles import scratch_folder

TOKENS = (
    *(b'{"episode_id":"a","step":0,"reply":"', b'"observation":"', b'"prompt":"', b'"reward":0.5'),
    *(
        b'"tool_calls":"[{\\"function\\":',
        b'"started_at":"2026-01-02T03:04:05Z"',
        b'"tokens_prompt":7',
        b'"valid":false',
    ),
)
PLACE = Place(scratch_folder("foreign_table") / "episodes.parquet", 1, unit="episode")


def check(data: bytes) -> None:
    rows = [as_dict(decode_json(line)) for line in data.split(b"\n")]
    if len(item := encode(rows)) <= LIMITS.item_bytes:
        check_decoded(Item(PLACE, item), FORMAT)

"""Live messages on their way into the console's state and lines.

The input is one payload of a live message per line.
"""

from __future__ import annotations

import msgspec

from agentgym_tui.state.run_store import RunStore, split_portions
from runner.events.codec import LiveRow, decode
from runner.events.live import LazyBatch
from runner.events.subjects import DurableNames, live_subject
from runner.subscribe.messages import BusMessage
from tests.fuzz.oracles import check_displayable
from tests.support.console.live_items import FakeClock
from tests.support.console.store_lines import MAX_BYTES, MAX_EPISODES, all_lines, check_bounds, episode_fields

TOKENS = (
    b'"kind":"token","at":"2026-03-04T05:06:07Z","episode_id":"01J0000000EEEEEEEEEEE00000","seq":',
    b'"text":"a","step":0',
    b'"restart":true',
    b'"failure":"e: r"',
    b'"endpoint":"e"',
    b'"part":"call","call":1,"tool":"t"',
    b'"kind":"episode.ended"',
)
SHARE = 2
MAX_MESSAGES = 4
NAMES, SUBJECT = DurableNames(), live_subject("episode", "n")


def check(data: bytes) -> None:
    rows = [decode(SUBJECT, None, line, NAMES) for line in data.split(b"\n")[:MAX_MESSAGES]]
    small = RunStore(now=FakeClock(), max_episodes=MAX_EPISODES, max_bytes=MAX_BYTES)
    store, apart = (RunStore(now=FakeClock()) for _ in range(2))  # which episodes are evicted depends on the grouping
    for row in rows:
        if isinstance(row, LiveRow):
            for portion in split_portions([row]):
                small.apply_events(portion)
                store.apply_events(portion)
            for item in _items_apart(row):
                apart.apply_events([item])
        else:
            message = BusMessage(subject=SUBJECT, headers={}, decoded=row)
            small.apply_events([message])
            store.apply_events([message])
            apart.apply_events([message])
        check_bounds(small)
    batches = [row.batch for row in rows if isinstance(row, LiveRow)]
    # Late items of an earlier process mark its episodes as interrupted only when the next message arrives.
    if len({(batch.node, batch.boot) for batch in batches}) == 1 and all(map(_has_valid_numbers, batches)):
        assert episode_fields(store) == episode_fields(apart)
    for shown in all_lines(store, (1, 80)):
        for cell in shown:
            check_displayable(cell.text)


def _items_apart(row: LiveRow) -> list[LiveRow]:
    return [LiveRow(batch=_with_items(row.batch, [item])) for item in row.batch.items] or [row]


def _with_items(batch: LazyBatch, items: list[object]) -> LazyBatch:
    return msgspec.structs.replace(batch, items=items)


def _has_valid_numbers(batch: LazyBatch) -> bool:
    """Return whether each item has its own number; the effect of repeated numbers depends on the grouping."""
    numbers = [(getattr(each, "episode_id", ""), getattr(each, "seq", id(each))) for each in batch.items]
    return len(set(numbers)) == len(numbers) and all(0 <= number < 1_000 for _, number in numbers if number < 2**40)

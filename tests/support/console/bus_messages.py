"""Hypothesis strategies for everything that a bus may deliver, derived from the message types."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from runner.events.codec import DurableRow, LiveRow, RawRow
from runner.events.control import NodeHealth, NodeList
from runner.events.durable import DurableEvent
from runner.events.live import LazyBatch, LazyItem, LiveItem
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
from tests.support.console.live_items import lazy_item
from tests.support.console.samples import ESCAPES, HOSTILE, batch_id, episode_id

TEXTS = st.sampled_from([*ESCAPES, HOSTILE, "", "Wordle", "n", "A" * 70_000])
IDS = st.sampled_from([*map(episode_id, range(4)), batch_id(0), "", "\x1b[2J", "x" * 5000])
INTEGERS = st.one_of(st.integers(-2, 6), st.sampled_from([-(2**63), 2**64, 10**400]))
MAX = sys.float_info.max
FLOATS = st.sampled_from([0.0, -0.0, 1.0, -1.5, 1e-300, 0.25, MAX, -MAX])
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def values_of(message_type: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401
    """Return a strategy for the values of a message type."""
    return _values(inspect.type_info(message_type))


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.Metadata():
            return _values(info.type)
        case inspect.UnionType():
            return st.one_of(*map(_values, info.types))
        case inspect.StructType():
            return st.builds(info.cls, **{field.name: _field(field) for field in info.fields})
        case inspect.ListType():
            return st.lists(_values(info.item_type), max_size=3)
        case inspect.VarTupleType():
            return st.lists(_values(info.item_type), max_size=3).map(tuple)
        case inspect.DictType():
            return st.dictionaries(_values(info.key_type), _values(info.value_type), max_size=3)
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.EnumType():
            return st.sampled_from(list(info.cls))
    return _PLAIN[type(info)]


def _field(field: inspect.Field) -> st.SearchStrategy[Any]:
    if field.name in ("seq", "index"):
        return st.one_of(st.integers(0, 5), INTEGERS)
    return IDS if field.name in ("episode_id", "batch_id", "boot") else _values(field.type)


_PLAIN: dict[type, st.SearchStrategy[Any]] = {
    inspect.StrType: TEXTS,
    inspect.IntType: INTEGERS,
    inspect.FloatType: FLOATS,
    inspect.BoolType: st.booleans(),
    inspect.NoneType: st.none(),
    inspect.DateTimeType: TIMES,
    inspect.AnyType: JSON,
    inspect.RawType: JSON.map(lambda value: msgspec.Raw(json.dumps(value).encode())),
}

LIVE_ITEMS = st.one_of(values_of(LiveItem).map(lazy_item), values_of(LazyItem))
RAW_ROWS = st.builds(RawRow, reason=TEXTS, payload=st.binary(max_size=9), size=INTEGERS)
ROWS = st.one_of(
    st.builds(
        LiveRow,
        batch=st.builds(LazyBatch, node=TEXTS, boot=IDS, dropped=INTEGERS, items=st.lists(LIVE_ITEMS, max_size=4)),
        raw=st.tuples(RAW_ROWS),
    ),
    st.builds(DurableRow, event=st.one_of(*map(values_of, get_args(DurableEvent))), id=TEXTS, type=TEXTS),
    RAW_ROWS,
)
SUBSCRIPTION_ITEMS: st.SearchStrategy[SubscriptionItem] = st.one_of(
    st.builds(
        lambda **fields: BusMessage(**fields),  # its signature names a type that is imported only for type checkers
        subject=TEXTS,
        stream=st.one_of(st.none(), TEXTS),
        sequence=st.one_of(st.none(), INTEGERS),
        time=st.one_of(st.none(), TIMES),
        headers=st.just({}),
        decoded=ROWS,
    ),
    st.builds(Notice, kind=st.just("gap"), text=TEXTS, count=INTEGERS),
)
NODE_LISTS = values_of(NodeList)
NODE_HEALTHS = values_of(NodeHealth)

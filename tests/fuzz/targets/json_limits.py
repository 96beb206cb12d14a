"""The limits on JSON from outside, compared with Python's own decoder."""

from __future__ import annotations

import json

from runner.events.codec import MAX_DEPTH, check_depth, check_fields, check_limits
from runner.util.json_accessors import decode_json
from runner.util.safe_values import encode
from tests.fuzz.oracles import outcome

TOKENS = (b"[" * 65, b"]" * 65, b'{"a":' * 65, b'"\\\\"', b'"\\""', b"[{", b"NaN", b'"a":1,"a":2')


def check(data: bytes) -> None:
    """Check the limits against a decoder that counts; also invalid JSON ends in a documented error."""
    limits = outcome(lambda: check_limits(data), ValueError)
    value = decode_json(data)
    assert encode(value)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        assert isinstance(limits, ValueError)
        return
    depth = outcome(lambda: check_depth(data), ValueError)
    try:
        expected, is_unique = _measure(text)
    except (ValueError, RecursionError):
        return
    assert isinstance(depth, ValueError) == (expected > MAX_DEPTH), expected
    fields = outcome(lambda: check_fields(data), ValueError, RecursionError)
    if isinstance(fields, RecursionError):
        assert expected > MAX_DEPTH
    else:
        assert isinstance(fields, ValueError) == (not is_unique)


def _measure(text: str) -> tuple[int, bool]:
    """Return the depth of a JSON text, and whether the fields of each object are unique and all numbers finite."""
    unique = [True]

    def pairs(items: list[tuple[str, object]]) -> dict[int, object]:
        unique.append(len({name for name, _ in items}) == len(items))
        return dict(enumerate(item for _, item in items))

    def constant(name: str) -> float:
        unique.append(False)
        return 0.0

    value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    return _depth(value), all(unique)


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
    return depth

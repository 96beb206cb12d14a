"""The check of values against schemas agrees with a full validator, and no value or schema breaks it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.util.json_schema import find_mismatch
from tests.support.json_values import JSON_VALUES

NAMES = st.sampled_from(["direction", "count", "item", "a b"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "up", "down", ""])
OPTIONS = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(NAMES, SCALARS, max_size=2)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def _object(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    required = st.lists(NAMES, max_size=2, unique=True)
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": properties, "additionalProperties": st.booleans() | inner},
        optional={"required": required},
    )


SCHEMAS = st.recursive(
    st.fixed_dictionaries({}, optional={"type": TYPES | st.lists(TYPES, min_size=1, unique=True)})
    | st.fixed_dictionaries({"enum": st.lists(OPTIONS, min_size=1)}),
    lambda inner: _object(inner) | st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
    max_leaves=6,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@given(VALUES, SCHEMAS)
def test_it_agrees_with_a_full_validator(value: object, schema: dict[str, Any]) -> None:
    assert (find_mismatch(value, schema) is None) is jsonschema.Draft202012Validator(schema).is_valid(value)


@given(VALUES | JSON_VALUES, SCHEMAS | JSON_VALUES)
def test_any_value_and_any_schema_can_be_checked(value: object, schema: object) -> None:
    reason = find_mismatch(value, schema)
    assert reason is None or reason


def test_values_and_schemas_may_be_nested_deeply_or_without_end() -> None:
    endless: dict[str, Any] = {"type": ["array", "object"]}
    endless |= {"items": endless, "additionalProperties": endless}
    value, other = 1, 1
    for _ in range(5_000):
        value, other = [value], [other]  # type: ignore[assignment]
    assert (find_mismatch(value, endless) or "").endswith("array or object; got 1")
    assert find_mismatch(value, {"enum": [other]}) == "one of an array; got an array"


MOVE = {
    "type": "object",
    "properties": {
        "direction": {"type": "string", "enum": ["up", "down"], "pattern": "(a+)+$"},
        "far": {},
        "to": {"properties": {"x": {}}},
    },
    "required": ["direction"],
}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"direction": "up"}, None),
        ({"direction": "up", "far": [1]}, None),
        ({"direction": "UP"}, 'direction: one of "up", "down"; got "UP"'),
        ({"direction": True}, 'direction: one of "up", "down"; got true'),
        ({}, "direction is missing"),
        ({"direction": "up", "speed": 2}, "speed is not one of its arguments"),
        ({"direction": "x" * 200}, f'direction: one of "up", "down"; got "{"x" * 99}…'),
        ({"direction": "up", "to": {"x": 1, "y": 2}}, "to.y is not one of the known keys"),
        (["up"], "object; got an array"),
    ],
)
def test_a_mismatch_is_described(value: object, reason: str | None) -> None:
    assert find_mismatch(value, MOVE) == reason


def test_true_and_one_differ_at_any_depth_and_an_empty_enumeration_allows_nothing() -> None:
    assert find_mismatch([1], {"enum": [[True]]}) == "one of an array; got an array"
    assert find_mismatch({"a": [True]}, {"enum": [{"a": [1]}]}) == "one of an object; got an object"
    assert find_mismatch([{"a": 1.0}], {"enum": [[{"a": 1}]]}) is None
    assert find_mismatch(1, {"enum": []}) == "no value; got 1"


def test_keys_that_a_schema_does_not_name_match_only_where_it_names_none_or_has_others() -> None:
    assert find_mismatch({"a": 1}, {"type": "object"}) is None
    assert find_mismatch({"a": 1}, {"properties": {"b": {}}}) == "a is not one of its arguments"
    assert find_mismatch({"a": 1}, {"properties": {"b": {}}, "additionalProperties": {}}) is None

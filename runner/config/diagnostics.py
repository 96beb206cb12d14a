"""What a profile expects at a place, in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from msgspec import inspect

from runner.config.document import YamlValue
from runner.config.profile import Profile

MAX_PROBLEMS = 20


KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys, and indices of lists, from the top of the file."""


Problem: TypeAlias = tuple[KeyPath, str]


FormatValue: TypeAlias = Callable[[KeyPath, YamlValue], str]
"""How an error quotes the value at a place."""


def format_key_path(where: KeyPath) -> str:
    """A place as people write it, e.g. ``environments.lightweight[2].port``."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"\w+", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text or "the file as a whole"


_WORDS: dict[type[inspect.Type], str] = {
    inspect.StrType: "a text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.NoneType: "nothing",
    inspect.DictType: "a mapping",
    inspect.VarTupleType: "a list",
}


def expected_at(where: KeyPath) -> str:
    """What may stand at ``where``."""
    return _describe(_type_at(where))


def known_keys(where: KeyPath) -> list[str]:
    """The keys of the mapping at ``where``."""
    return [field.encode_name for field in _fields(_type_at(where))]


@cache
def _profile() -> inspect.Type:
    return inspect.type_info(Profile)


def _type_at(where: KeyPath) -> inspect.Type:
    found = _profile()
    for step in where:
        found = _child(_plain(found), step)
    return found


def _child(parent: inspect.Type, step: str | int) -> inspect.Type:
    if isinstance(parent, inspect.VarTupleType):
        return parent.item_type
    if isinstance(parent, inspect.DictType):
        return parent.value_type
    return next((field.type for field in _fields(parent) if field.encode_name == step), inspect.AnyType())


def _fields(of: inspect.Type) -> tuple[inspect.Field, ...]:
    plain = _plain(of)
    return plain.fields if isinstance(plain, inspect.StructType) else ()


def _plain(annotated: inspect.Type) -> inspect.Type:
    return annotated.type if isinstance(annotated, inspect.Metadata) else annotated


def _describe(wanted: inspect.Type) -> str:
    if isinstance(wanted, inspect.Metadata):
        return str((wanted.extra_json_schema or {}).get("description") or _describe(wanted.type))
    if isinstance(wanted, inspect.UnionType):
        return ", or ".join(map(_describe, wanted.types))
    if isinstance(wanted, inspect.LiteralType):
        return f"one of {', '.join(map(str, wanted.values))}"
    if isinstance(wanted, inspect.StructType):
        return f"a mapping with the keys {', '.join(known_field.encode_name for known_field in wanted.fields)}"
    return _WORDS.get(type(wanted), "something else")

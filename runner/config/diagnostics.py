"""Error reports for profiles: key paths, problems, and descriptions of the values that a key expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

import msgspec
from msgspec import inspect

from runner.config.document import YamlValue, resolve_scalar
from runner.config.profile import Profile
from runner.errors import ConfigError

MAX_PROBLEMS = 20

KeyPath: TypeAlias = tuple[str | int, ...]
"""Location of a value: the mapping keys and list indexes from the top level of the file."""

Problem: TypeAlias = tuple[KeyPath, str]
"""A key path, and a description of the problem with its value."""

FormatValue: TypeAlias = Callable[[KeyPath, YamlValue], str]

_REFERENCE = re.compile(r"\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\})?")
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_TYPE_NAMES: dict[type[inspect.Type], str] = {
    inspect.StrType: "a text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.NoneType: "nothing",
    inspect.DictType: "a mapping",
    inspect.VarTupleType: "a list",
}


def format_key_path(key_path: KeyPath) -> str:
    """Format a key path for display, e.g. ``environments.lightweight[2].port``."""
    text = ""
    for step in key_path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"\w+", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text or "top level"


def is_server_variable(key_path: KeyPath) -> bool:
    """Also true of a value that contains one; ``environments.moderate[0].env.TOKEN`` is one."""
    return key_path[:1] == ("environments",) and key_path[3:4] == ("env",)


def expected_at(key_path: KeyPath) -> str:
    return _describe(_type_at(key_path))


def known_keys(key_path: KeyPath) -> list[str]:
    return [field.encode_name for field in _fields(_type_at(key_path))]


@cache
def _profile_type() -> inspect.Type:
    return inspect.type_info(Profile)


def _type_at(key_path: KeyPath) -> inspect.Type:
    current = _profile_type()
    for step in key_path:
        current = _child_type(_unwrap(current), step)
    return current


def _child_type(parent: inspect.Type, step: str | int) -> inspect.Type:
    if isinstance(parent, inspect.VarTupleType):
        return parent.item_type
    if isinstance(parent, inspect.DictType):
        return parent.value_type
    return next((field.type for field in _fields(parent) if field.encode_name == step), inspect.AnyType())


def _fields(annotated: inspect.Type) -> tuple[inspect.Field, ...]:
    struct = _unwrap(annotated)
    return struct.fields if isinstance(struct, inspect.StructType) else ()


def _unwrap(annotated: inspect.Type) -> inspect.Type:
    return annotated.type if isinstance(annotated, inspect.Metadata) else annotated


def _describe(expected: inspect.Type) -> str:
    if isinstance(expected, inspect.Metadata):
        return str((expected.extra_json_schema or {}).get("description") or _describe(expected.type))
    if isinstance(expected, inspect.UnionType):
        return ", or ".join(map(_describe, expected.types))
    if isinstance(expected, inspect.LiteralType):
        return f"one of {', '.join(map(str, expected.values))}"
    if isinstance(expected, inspect.StructType):
        return f"a mapping with the keys {', '.join(field.encode_name for field in expected.fields)}"
    return _TYPE_NAMES.get(type(expected), "another type")


class Expanded(msgspec.Struct):
    """Data of a profile with all references expanded.

    Attributes:
        data: the data, copied so that two key paths never share a value.
        texts: the expanded text of every value that was a single reference. In ``data``, a text such as ``12`` or
            ``true`` is a number, boolean or null; a key that expects a text needs the original text.
    """

    data: YamlValue = None
    texts: dict[KeyPath, str] = {}
    problems: list[Problem] = []


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace the references in a text; references inside an expanded value are not expanded again.

    As in a shell, ``${VAR:-default}`` gives the default if VAR is unset or empty.

    Raises:
        ConfigError: a variable without a default is unset, or ``${`` does not start a valid reference.
    """

    def value_of(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            raise ConfigError("expected ${NAME} or ${NAME:-default}; a default must not contain a reference")
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ConfigError(f"the environment variable {name} is not set; set it or write ${{{name}:-default}}")
        return environ[name]

    return _REFERENCE.sub(value_of, text)


def expand_all(data: YamlValue, environ: Mapping[str, str]) -> Expanded:
    """Never expands keys; collects all problems."""
    result = Expanded()
    result.data = _expand_value(data, (), environ, result)
    return result


def _expand_value(value: YamlValue, key_path: KeyPath, environ: Mapping[str, str], result: Expanded) -> YamlValue:
    if isinstance(value, dict):
        reserved = [key for key in value if key.startswith("_") and not is_server_variable((*key_path, key))]
        result.problems += [((*key_path, key), "keys must not start with _") for key in reserved]
        return {key: _expand_value(item, (*key_path, key), environ, result) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand_value(item, (*key_path, index), environ, result) for index, item in enumerate(value)]
    if isinstance(value, str):
        return _expand_text(value, key_path, environ, result)
    return value


def _expand_text(value: str, key_path: KeyPath, environ: Mapping[str, str], result: Expanded) -> YamlValue:
    try:
        text = expand(value, environ)
    except ConfigError as exc:
        result.problems.append((key_path, str(exc)))
        return value
    if _CONTROL_CHARACTERS.search(text):
        result.problems.append((key_path, "expected a text without control characters"))
    reference = _REFERENCE.fullmatch(value)
    if reference is None:
        return text
    result.texts[key_path] = text
    return resolve_scalar(text)

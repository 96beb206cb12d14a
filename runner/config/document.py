"""Strict YAML for untrusted text, in which texts may refer to environment variables.

It reads the events of PyYAML directly. This way tags cannot construct objects, duplicate keys are detected, and depth
and size are bounded before any data is built; an alias counts with its full size each time it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import TypeAlias

import yaml

from runner.errors import ConfigError

YamlValue: TypeAlias = "str | int | float | bool | list[YamlValue] | dict[str, YamlValue] | None"

MAX_DEPTH = 32
MAX_NODES = 20_000
"""Maximum number of values; the values of an alias count each time it is used."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

_REFERENCE = re.compile(r"\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\})?")
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def parse_yaml(text: str) -> YamlValue:
    """Parse at most one YAML document, None for an empty text; the ``ConfigError`` about it has the line number."""
    try:
        return _Parser(text).parse()
    except yaml.MarkedYAMLError as exc:
        raise ConfigError(f"{_line(exc.problem_mark)}not valid YAML: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, ValueError, OverflowError) as exc:  # PyYAML without libyaml: invalid Unicode escapes
        raise ConfigError(f"not valid YAML: {exc}") from exc


def resolve_scalar(text: str) -> YamlValue:
    """Return the value of an unquoted scalar as in YAML 1.2: boolean, null, finite decimal number or text.

    Octal and hexadecimal numbers, ``.inf`` and ``.nan`` are texts, unlike in the core schema of YAML 1.2. ``off``,
    ``no`` and ``12:30`` are texts, unlike in YAML 1.1; ``off`` is a value of the key ``tracing``.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def replace_values(text: str, values: Mapping[str, YamlValue]) -> tuple[str, list[str]]:
    """Return the text of a mapping with new values of keys, and those of the keys whose comments it has no more.

    The other lines stay as they are. Where that is impossible, as with an anchor in an old value, all of it is written
    anew, and the list has ``all``.
    """
    data, edited, lost = parse_yaml(text), text, list[str]()
    wanted = {**(data if isinstance(data, dict) else {}), **values}
    for key, value in values.items():
        old = re.search(rf"^{re.escape(key)}:.*(?:\n+[ \t-].*)*", edited, re.MULTILINE)
        lost += [key] if old and "#" in old[0] else []
        new = _dump({key: value})
        edited = f"{edited[: old.start()]}{new.rstrip()}{edited[old.end() :]}" if old else f"{edited.rstrip()}\n{new}"
    edited = f"{edited.rstrip()}\n"
    with suppress(ConfigError):
        if parse_yaml(edited) == wanted:
            return edited, lost
    return _dump(wanted), ["all"] if "#" in text else []


class _Dumper(yaml.SafeDumper):
    """Also quotes texts such as ``08``, which are numbers to ``parse_yaml`` and texts to PyYAML."""


def _represent(dumper: _Dumper, text: str) -> yaml.Node:
    style = None if isinstance(resolve_scalar(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def _dump(data: YamlValue) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


class _Parser:
    """Builds data from PyYAML's events, with one recursive call per value."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, tuple[YamlValue, int]] = {}
        self._n_nodes = 0

    def parse(self) -> YamlValue:
        next(self._events)  # start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), MAX_DEPTH)
        next(self._events)  # end of the document
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise _error(following, "more than one document in the file")
        return value

    def _value(self, event: yaml.Event, depth: int) -> YamlValue:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        n_before = self._n_nodes
        self._count(event, 1)
        if getattr(event, "tag", None) is not None:
            raise _error(event, "tags are not supported; use plain texts, numbers, lists and mappings")
        if depth == 0:
            raise _error(event, f"more than {MAX_DEPTH} levels of nesting")
        value: YamlValue
        if isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(depth - 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(item, depth - 1) for item in takewhile(_is_inside, self._events)]
        else:
            plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            text = str(getattr(event, "value", ""))
            value = resolve_scalar(text) if plain else text
        if (anchor := getattr(event, "anchor", None)) is not None:
            self._anchors[anchor] = (value, self._n_nodes - n_before)
        return value

    def _mapping(self, depth: int) -> YamlValue:
        mapping: dict[str, YamlValue] = {}
        for event in takewhile(_is_inside, self._events):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise _error(event, "a key must be a plain text")
            key = str(event.value)
            if key in mapping:
                raise _error(event, "duplicate key in a mapping")
            mapping[key] = self._value(next(self._events), depth)
        return mapping

    def _alias(self, event: yaml.AliasEvent) -> YamlValue:
        if event.anchor not in self._anchors:  # an anchor is registered when its value is complete
            raise _error(event, "unknown alias; its anchor must be complete before the alias")
        value, n_nodes = self._anchors[event.anchor]
        self._count(event, n_nodes)
        return value

    def _count(self, event: yaml.Event, n_nodes: int) -> None:
        self._n_nodes += n_nodes
        if self._n_nodes > MAX_NODES:
            raise _error(event, f"more than {MAX_NODES} values")


def _is_inside(event: yaml.Event) -> bool:
    return not isinstance(event, yaml.CollectionEndEvent)


def _error(event: yaml.Event, problem: str) -> ConfigError:
    return ConfigError(f"{_line(event.start_mark)}{problem}")


def _line(mark: object) -> str:
    line = getattr(mark, "line", None)
    return "" if line is None else f"line {line + 1}: "


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


def expand_data(data: YamlValue, environ: Mapping[str, str], texts: Collection[str] = ()) -> YamlValue:
    """Return data of a profile with all references expanded, copied so that a value stands in one place only.

    Args:
        texts: paths of the values that are texts, as msgspec writes them, such as ``.environments.skip[0].name``, or
            with ``[...]`` for all keys of a mapping. Elsewhere a value that is one reference is read as YAML: the
            text ``12`` is a number. Whole numbers below ``[...]`` become texts, too.

    Raises:
        ConfigError: a reference is not valid, or a key or text is not allowed.
    """

    def copy(value: YamlValue, path: str, any_key: str = "") -> YamlValue:
        if isinstance(value, dict):
            for key in value:
                if key.startswith("_") and not path.endswith(".env"):
                    raise ConfigError(f"{path}.{key}: keys must not start with _".removeprefix("."))
            return {key: copy(item, f"{path}.{key}", f"{path}[...]") for key, item in value.items()}
        if isinstance(value, list):
            return [copy(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if type(value) is int and any_key in texts:
            return str(value)
        if not isinstance(value, str):
            return value
        try:
            text = expand(value, environ)
            if _CONTROL_CHARACTERS.search(text):
                raise ConfigError("expected a text without control characters")
        except ConfigError as exc:
            raise ConfigError(f"{path.removeprefix('.') or 'top level'}: {exc}") from None
        is_text = path in texts or any_key in texts or not _REFERENCE.fullmatch(value)
        return text if is_text else resolve_scalar(text)

    return copy(data, "")

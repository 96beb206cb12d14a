"""A YAML text as plain data: mappings, lists, texts, numbers, true, false and nothing.

The parser's events are read directly, so that no tag can construct anything, a repeated key is seen, and depth and
size (with aliases counted as often as they stand) are bounded before the data exists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TypeAlias

import yaml

from runner.errors import ConfigError

YamlValue: TypeAlias = "str | int | float | bool | list[YamlValue] | dict[str, YamlValue] | None"

MAX_DEPTH = 32
MAX_NODES = 20_000

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def parse_yaml(text: str) -> YamlValue:
    """The one document of a YAML text.

    Raises:
        ConfigError: with the line, for text that is no YAML or uses what a profile has no use for.
    """
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as exc:
        raise ConfigError(f"{_line(exc.problem_mark)}not valid YAML: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, ValueError, OverflowError) as exc:  # the last two: without libyaml, escapes beyond Unicode
        raise ConfigError(f"not valid YAML: {exc}") from exc


def resolve_scalar(text: str) -> YamlValue:
    """What an unquoted scalar means: YAML 1.2's true, false, null and finite decimal numbers, else a text.

    Unlike in YAML 1.1 ``off`` and ``no`` are texts (``tracing: off`` is a level) and ``12:30`` is no number.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


class _Reader:
    """Turns parser events into data, one recursive call per value."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, tuple[YamlValue, int]] = {}
        self._nodes = 0

    def document(self) -> YamlValue:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), MAX_DEPTH)
        next(self._events)  # the end of the document
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise _refused(following, "a second document in one file")
        return value

    def _value(self, event: yaml.Event, depth: int) -> YamlValue:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._nodes
        self._count(event, 1)
        if getattr(event, "tag", None) is not None:
            raise _refused(event, "a tag; values are plain texts, numbers, lists and mappings")
        if depth == 0:
            raise _refused(event, f"more than {MAX_DEPTH} levels of nesting")
        value: YamlValue
        if isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(depth - 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(depth - 1)
        else:
            value = _scalar(event)
        if (anchor := getattr(event, "anchor", None)) is not None:
            self._anchors[anchor] = (value, self._nodes - before)
        return value

    def _mapping(self, depth: int) -> YamlValue:
        mapping: dict[str, YamlValue] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise _refused(event, "a key that is not a plain text")
            key = str(event.value)
            if key in mapping:
                raise _refused(event, "the same key twice in one mapping")
            mapping[key] = self._value(next(self._events), depth)
        return mapping

    def _sequence(self, depth: int) -> YamlValue:
        items: list[YamlValue] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth))
        return items

    def _alias(self, event: yaml.AliasEvent) -> YamlValue:
        if event.anchor not in self._anchors:  # an anchor is known once its value is complete
            raise _refused(event, "an alias to nothing before it, or to what it is part of")
        value, nodes = self._anchors[event.anchor]
        self._count(event, nodes)
        return value

    def _count(self, event: yaml.Event, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _refused(event, f"more than {MAX_NODES} values")


def _scalar(event: yaml.Event) -> YamlValue:
    plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
    text = str(getattr(event, "value", ""))
    return resolve_scalar(text) if plain else text


def _refused(event: yaml.Event, what: str) -> ConfigError:
    return ConfigError(f"{_line(event.start_mark)}holds {what}")


def _line(mark: object) -> str:
    line = getattr(mark, "line", None)
    return "" if line is None else f"line {line + 1}: "

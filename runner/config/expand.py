"""``${VAR}`` and ``${VAR:-default}`` in the texts of a profile, and what no value or key may look like."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from runner.config.diagnostics import KeyPath, Problem
from runner.config.document import YamlValue, resolve_scalar
from runner.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\})?")
_UNUSABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Expanded(msgspec.Struct):
    """The data with every reference replaced.

    Attributes:
        data: a copy, so that nothing is shared between two places of it.
        texts: where one reference was the whole text and its value then read as a number, a truth value or nothing:
            that text, for keys that want a text.
        problems: what is wrong, and where.
    """

    data: YamlValue = None
    texts: dict[KeyPath, str] = {}
    problems: list[Problem] = []


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace the references of one text once; what a value holds is not looked at again.

    ``${VAR:-default}`` gives the default when VAR is unset or empty, as in a shell.

    Raises:
        ConfigError: when a variable without a default is unset, or ``${`` starts nothing that is known.
    """

    def value_of(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            raise ConfigError("expected ${NAME} or ${NAME:-default} where ${ stands, and no reference in a default")
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ConfigError(f"the environment variable {name} is not set; set it or write ${{{name}:-default}}")
        return environ[name]

    return _REFERENCE.sub(value_of, text)


def expand_all(data: YamlValue, environ: Mapping[str, str]) -> Expanded:
    """Expand every text value of a profile's data (never a key), collecting all that is wrong."""
    result = Expanded()
    result.data = _walk(data, (), environ, result)
    return result


def _walk(value: YamlValue, where: KeyPath, environ: Mapping[str, str], into: Expanded) -> YamlValue:
    if isinstance(value, dict):
        into.problems += [((*where, key), "keys must not start with _") for key in value if key.startswith("_")]
        return {key: _walk(item, (*where, key), environ, into) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, (*where, index), environ, into) for index, item in enumerate(value)]
    if isinstance(value, str):
        return _text(value, where, environ, into)
    return value


def _text(value: str, where: KeyPath, environ: Mapping[str, str], into: Expanded) -> YamlValue:
    try:
        text = expand(value, environ)
    except ConfigError as exc:
        into.problems.append((where, str(exc)))
        return value
    if _UNUSABLE.search(text):
        into.problems.append((where, "expected a text without control characters"))
    reference = _REFERENCE.fullmatch(value)
    if reference is None:
        return text
    into.texts[where] = text
    return resolve_scalar(text)

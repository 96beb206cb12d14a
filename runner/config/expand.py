"""Expansion of ``${VAR}`` and ``${VAR:-default}`` in the texts of a profile, and checks of all keys and texts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from runner.config.diagnostics import KeyPath, Problem, is_server_variable
from runner.config.document import YamlValue, resolve_scalar
from runner.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\})?")
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


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

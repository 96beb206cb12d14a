from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.document import YamlValue, expand, expand_data, parse_yaml, resolve_scalar
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${URL:-http://localhost:3030}/v1", "http://localhost:3030/v1"),
        ("${SET}", "value"),
        ("${SET:-other}", "value"),
        ("<${SET}|${SET}>", "<value|value>"),
        ("${EMPTY:-filled}", "filled"),
        ("${EMPTY}", ""),
        ("${UNSET:-}", ""),
        ("${UNSET:-a b:-c}", "a b:-c"),
        ("$SET {SET} $$ $", "$SET {SET} $$ $"),
    ],
)
def test_references_are_expanded(text: str, expanded: str) -> None:
    assert expand(text, {"SET": "value", "EMPTY": ""}) == expanded


@given(st.text())
def test_a_value_is_never_expanded_again(value: str) -> None:
    assert expand("${OUTER:-x}", {"OUTER": f"{value}${{INNER}}", "INNER": "bad"}) == f"{value}${{INNER}}"


def test_the_error_names_an_unset_variable_without_a_default() -> None:
    with pytest.raises(ConfigError, match="MISSING is not set"):
        expand("a ${MISSING}", {})


@pytest.mark.parametrize("text", ["${", "${}", "${1A}", "${A:?no}", "${A:-${B}}", "${A-b}", "${A"])
def test_invalid_references_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        expand(text, {"A": "a", "B": "b"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("36001", 36001),
        ("010", 10),
        ("90.5", 90.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("", None),
        ("~", None),
        ("null", None),
        ("off", "off"),
        ("12:30", "12:30"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("9" * 5000, "9" * 5000),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_scalars_of_files_and_variables_are_parsed_alike(text: str, value: object) -> None:
    assert resolve_scalar(text) == value
    assert type(resolve_scalar(text)) is type(value)
    assert parse_yaml(f"key: {text}") == {"key": value}
    assert parse_yaml(f"key: '{text}'") == {"key": text}
    assert expand_data({"key": "${VAR}"}, {"VAR": text}) == {"key": value}
    assert expand_data({"key": "${VAR}"}, {"VAR": text}, {".key"}) == {"key": text}


def test_a_reference_within_a_text_expands_to_text() -> None:
    data: YamlValue = {"key": "${A}${B}", "other": " ${A}"}
    assert expand_data(data, {"A": "1", "B": "2"}) == {"key": "12", "other": " 1"}


def test_keys_are_not_expanded_and_leading_underscores_are_rejected() -> None:
    assert expand_data({"${A}": []}, {"A": "a"}) == {"${A}": []}
    with pytest.raises(ConfigError, match=r"^a\[0\]\._target_: keys must not start with _$"):
        expand_data({"a": [{"_target_": "os.system"}]}, {})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"a": "${NO}"}, r"^a: .*NO is not set"),
        ({"b": ["\n\t", "x\x1b"]}, r"^b\[1\]: .* without control"),
        ({"b": ["y\ud800"]}, r"^b\[0\]: .* without control"),
    ],
)
def test_a_problem_is_reported_with_its_path(data: dict[str, YamlValue], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        expand_data(data, {})


def test_expanded_aliases_are_separate_copies() -> None:
    data = expand_data(parse_yaml("a: &x {k: [1]}\nb: *x"), {})
    assert isinstance(data, dict)
    assert data["a"] == data["b"]
    assert data["a"] is not data["b"]

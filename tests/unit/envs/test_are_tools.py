"""JSON Schema of ARE's tools from the Python types of their arguments."""

from __future__ import annotations

import ast
import enum
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import jsonschema
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from runner.envs.are.engine.played_scenario import take_within, without_secrets
from runner.envs.are.tools import (
    MAX_NAME_CHARS,
    WAIT,
    WAIT_TOOL,
    argument_schema,
    function_schema,
    type_schema,
    unique_names,
)

MISSING = object()
PACKAGE = Path(__file__).parents[3] / "runner"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Sample:
    name: str
    type_obj: Any
    default: Any = None
    has_default: bool = False
    description: str | None = None


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (dict, {"type": "object"}),
        (list, {"type": "array"}),
        (None, {"type": "null"}),
        (Any, {}),
        ("Any", {}),
        (object, {}),
        (Sample, {}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (list[Any], {"type": "array"}),
        (set[int], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, str], {"type": "array", "minItems": 2, "maxItems": 2}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, Any], {"type": "object"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (Optional[list[str]], {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Color, {"enum": ["red", "blue"]}),
        (Annotated[int, "seconds"], {"type": "integer"}),
        (Callable[[int], str], {}),
    ],
)
def test_a_type_has_a_schema(kind: object, schema: dict[str, Any]) -> None:
    assert type_schema(kind) == schema
    jsonschema.Draft202012Validator.check_schema(schema)


def test_an_argument_has_its_default_and_description() -> None:
    optional = Sample("to", list[str] | None, has_default=True, description=" who gets it \n")
    assert argument_schema(optional) == {"type": "array", "items": {"type": "string"}, "description": "who gets it"}
    assert argument_schema(Sample("n", int, 3, has_default=True)) == {"type": "integer", "default": 3}
    assert argument_schema(Sample("n", object, MISSING, has_default=True)) == {}
    assert argument_schema(Sample("n", float, float("nan"), has_default=True)) == {"type": "number"}
    assert argument_schema(Sample("n", int | str | None, has_default=True)) == {
        "anyOf": [{"type": "integer"}, {"type": "string"}]
    }


def test_arguments_without_a_default_are_required() -> None:
    schema = function_schema("App__send", None, [Sample("text", str), Sample("times", int, 1, has_default=True)])
    parameters = schema["function"]["parameters"]
    assert (schema["function"]["name"], schema["function"]["description"]) == ("App__send", "")
    assert (parameters["required"], parameters["additionalProperties"]) == (["text"], False)
    jsonschema.Draft202012Validator.check_schema(parameters)
    jsonschema.validate({"text": "a"}, parameters)
    for wrong in ({}, {"text": 1}, {"text": "a", "other": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, parameters)
    jsonschema.Draft202012Validator.check_schema(WAIT_TOOL["function"]["parameters"])


def test_names_are_distinct_and_never_that_of_the_wait() -> None:
    names = ["Mail App__send", "Mail_App__send", WAIT, "", "x" * 100, "x" * 99]
    assert unique_names(names) == ["Mail_App__send", "Mail_App__send_2", "wait_2", "_", "x" * 64, f"{'x' * 62}_2"]


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    imports = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return imports | {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}


def test_only_the_engine_imports_are_and_the_engine_needs_nothing_else() -> None:
    engine = PACKAGE / "envs" / "are" / "engine"
    util = tuple(PACKAGE / "util" / f"{name}.py" for name in ("child_process", "fork_server", "framing"))
    beside = (engine.parent / "tools.py", engine.parent / "scenario_scan.py", PACKAGE / "errors.py")
    own = {*engine.glob("*.py"), *util, *beside}
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in own}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        assert path.is_relative_to(engine) or not re.search(r"^\s*(from|import) are\b", text, re.MULTILINE), path
        if path in own:
            imported = {name.partition(".")[0] for name in imported_modules(path)}
            assert imported <= {"are", "fsspec", "runner", *sys.stdlib_module_names}, path
            ours = {name for name in imported_modules(path) if name.startswith("runner")}
            assert ours <= names | {"runner.envs.are.engine"}, path


@hypothesis_settings(deadline=None)
@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_names_become_names_of_functions(names: list[str]) -> None:
    unique = unique_names(names)
    assert len(set(unique)) == len(names) and WAIT not in unique
    assert all(0 < len(name) <= MAX_NAME_CHARS and name.isascii() for name in unique)


def test_secrets_are_masked_at_any_depth() -> None:
    given = {"api_token": "t", "body": {"password": "p", "to": ["a", {"Authorization": "b", "count": 1}]}}
    assert without_secrets(given) == {
        "api_token": "***",
        "body": {"password": "***", "to": ["a", {"Authorization": "***", "count": 1}]},
    }


def test_no_more_items_are_taken_than_fit() -> None:
    items = [{"a": "x" * 100}] * 10
    assert [len(take_within(items, n, chars)) for n, chars in ((3, 10_000), (10, 250), (10, 50))] == [3, 2, 0]

"""The working directory and the environment variables of an environment server in a profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config import EnvironmentEntry, load_profile
from runner.errors import ConfigError
from runner.util.files import resolve_path


def load_env(folder: Path, env: str, environ: dict[str, str] | None = None) -> dict[str, str]:
    path = folder / "p.yaml"
    path.write_text(f"id: x\nenvironments: {{lightweight: [{{name: Maze, server_cmd: s, env: {env}}}]}}\n")
    return load_profile(str(path), environ=environ or {}, cwd=folder).tier("lightweight")[0].env


def load_error(folder: Path, env: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_env(folder, env, environ)
    return str(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


def test_numbers_and_references_are_texts(folder: Path) -> None:
    environ = {"SEED": "007", "ON": "true", "URL": "http://a", "PATH": "/bin"}
    text = """{PYTHONHASHSEED: 0, BIG: -12, SEED: "${SEED}", ON: "${ON}", NONE: "${UNSET:-}", EMPTY: "",
      PATH: "/opt/bin:${PATH}", JAVA_HOME: /opt/java, _JAVA_OPTIONS: -Xmx1g, Q: "1.0"}"""
    assert load_env(folder, text, environ) == {
        "PYTHONHASHSEED": "0",
        "BIG": "-12",
        "SEED": "007",
        "ON": "true",
        "NONE": "",
        "EMPTY": "",
        "PATH": "/opt/bin:/bin",
        "JAVA_HOME": "/opt/java",
        "_JAVA_OPTIONS": "-Xmx1g",
        "Q": "1.0",
    }


@pytest.mark.parametrize(
    ("env", "key_path", "reason"),
    [
        ("{A: true}", "env[...]", "Expected `str`, got `bool`"),
        ("{OK: x, A: }", "env[...]", "got `null`"),
        ("[A=x]", "env", "Expected `object`, got `array`"),
        ("{A: x, 2A: x}", "env.2A", "expected a variable's name: letters, digits and _"),
        ("{'A=B': x}", "env.A=B", "expected a variable's name"),
        ("{'': x}", "env.", "expected a variable's name"),
        ("{A: '${NOPE}'}", "env.A", "the environment variable NOPE is not set"),
        ('{A: "a\\0b"}', "env.A", "without control characters"),
    ],
)
def test_an_invalid_variable_is_rejected_with_its_key_path(folder: Path, env: str, key_path: str, reason: str) -> None:
    message = load_error(folder, env)
    assert f": environments.lightweight[0].{key_path}: " in message
    assert reason in message


def test_errors_never_show_the_value_of_a_variable(folder: Path) -> None:
    environ = {"INNOCENT": "hush-hush-1", "NUMBER": "12345.5"}
    message = load_error(folder, '{A: "${INNOCENT}\\0", B: ["${INNOCENT}"], C: 12345.5, D: "${NUMBER}", 9: x}', environ)
    assert "hush-hush-1" not in message
    assert "12345.5" not in load_error(folder, '{C: 12345.5, D: "${NUMBER}", 9: x}', environ)


def test_the_representation_of_an_entry_shows_no_secrets() -> None:
    entry = EnvironmentEntry(name="Maze", base_url="http://me:pa55word@h", env={"A": "hush-hush-1"}, port=5)
    shown = repr(entry) + repr(entry.__rich_repr__())
    assert "hush-hush-1" not in shown
    assert "pa55word" not in shown
    assert "name='Maze'" in shown
    assert "env={'A': '***'}" in shown


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(max_codepoint=0xD7FF, categories=("L", "N", "P", "S", "Zs")), max_size=12).filter(
    lambda text: "${" not in text
)


@given(env=st.dictionaries(NAMES, TEXTS | st.integers(-(10**20), 10**20), max_size=4))
def test_every_text_and_whole_number_reaches_the_entry(folder: Path, env: dict[str, str | int]) -> None:
    assert load_env(folder, json.dumps(env)) == {name: str(value) for name, value in env.items()}


@given(value=TEXTS)
def test_a_reference_is_the_exact_text_of_its_variable(folder: Path, value: str) -> None:
    assert load_env(folder, '{A: "${A}", B: "x${A}"}', {"A": value}) == {"A": value, "B": f"x{value}"}


def test_a_working_directory_starts_at_the_current_directory_or_the_home(tmp_path: Path) -> None:
    environ = {"HOME": "/home/me"}
    paths = ("sub/a", "~/a", "~", "/abs", "~other/a")
    assert [str(resolve_path(path, environ, tmp_path)) for path in paths] == [
        f"{tmp_path}/sub/a",
        "/home/me/a",
        "/home/me",
        "/abs",
        f"{tmp_path}/~other/a",
    ]
    assert resolve_path("~/a", {}, tmp_path) == tmp_path / "~/a"

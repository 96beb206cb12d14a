"""The user's settings file: valid settings apply; each invalid one is reported on one line and ignored."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.cli import main
from agentgym_tui.commands import (
    COMMANDS,
    QUESTIONS,
    SCOPES,
    Keymap,
    apply_together,
    display_keys,
    scope_of,
    typed_character,
)
from agentgym_tui.config import (
    DEFAULT_THEME,
    Notify,
    Settings,
    config_path,
    default_settings_text,
    parse_settings,
    read_settings,
    resolve_keymap,
)
from agentgym_tui.safe_text import has_unsafe_chars
from tests.support.console.samples import HOSTILE
from tests.support.examples import examples

KEYS = {command.id: command.keys for command in COMMANDS if command.keys}


def problems_in(text: str) -> list[str]:
    return list(parse_settings(text.encode()).problems)


def test_all_settings_are_read_and_problems_listed() -> None:
    parsed = parse_settings(
        b"keymap: {run.selected: U, list.down: [j, down, 0], run.battery: '?, %'}\n"
        b"theme: nord\nnotify: {toast: false, bell: true, desktop: true}\nkeymap2: x\n"
    )
    assert parsed.theme == "nord"
    assert parsed.notify == Notify(toast=False, bell=True, desktop=True)
    assert parsed.keys.overrides == {"run.selected": "U", "list.down": "j,down,0"}
    assert list(parsed.problems) == ["unknown setting keymap2", "keymap: run.battery: ? is already the key of app.help"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "theme: default\n", "keymap:\nnotify:\ntheme:\n"])
def test_an_empty_file_changes_nothing(text: str) -> None:
    assert parse_settings(text.encode()) == Settings()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a", "only keymap:, theme: and notify: are settings"),
        ("theme: [", "not valid YAML"),
        ("theme: 5", "theme: unknown theme 5"),
        ("keymap: q", "keymap: expected names"),
        ("notify: {sound: true}", "notify: sound: expected toast, bell or desktop"),
        ("notify: {bell: loud}", "notify: bell: expected"),
        ("keymap: {run.selectd: e}", "keymap: unknown command run.selectd"),
        ("keymap: {run.selected: {a: b}}", "keymap: run.selected: expected one or more keys"),
        ("keymap: {run.selected: [true]}", "keymap: run.selected: expected one or more keys"),
        ("keymap: {run.selected: nokey}", "keymap: run.selected: nokey is not a usable key"),
        ("keymap: {run.selected: ''}", "keymap: run.selected:  is not a usable key"),
        ("keymap: {run.selected: tab}", "keymap: run.selected: tab is not a usable key"),
        ("keymap: {run.selected: hyperr+a}", "keymap: run.selected: hyperr+a is not a usable key"),
        ("keymap: {run.selected: [a,c,d,e,f,u,i,m,A]}", "more than 8 keys"),
        ("keymap: {dialog.close: 'ctrl+['}", "keymap: dialog.close: ctrl+left_square_bracket is sent as escape by"),
        ("keymap: {app.quit: ctrl+H}", "keymap: app.quit: ctrl+h is sent as backspace by terminals"),
        ("keymap: {app.quit: ctrl+space}", "keymap: app.quit: ctrl+space is sent as ctrl+@ by terminals"),
        ("keymap: {app.quit: shift+q}", "keymap: app.quit: shift+q is sent as Q by terminals"),
        ("keymap: {palette.close: Q}", "keymap: palette.close: Q is a character typed into the field"),
        ("keymap: {filter.leave: space}", "keymap: filter.leave: space is a character typed into the field"),
        ("keymap: {entry.take: x}", "keymap: entry.take: x is a character typed into the field"),
        ("keymap: {events.go_to: o}", "keymap: events.go_to: o is already the key of table.sort"),
        ("keymap: {run.cancel: s}", "keymap: run.cancel: s is already the key of run.step"),
        ("keymap: {app.zoom: j}", "keymap: app.zoom: j is already the key of list.down"),
        ("keymap: {dialog.close: j}", "keymap: dialog.close: j is already the key of list.down"),
        ("keymap: {table.sort: escape}", "keymap: table.sort: esc is already the key of"),
        ("keymap: {delete.delete: [f2, enter]}", "keymap: delete.delete: enter is the key of the focused button"),
        ("keymap: {delete.delete: down}", "keymap: delete.delete: ↓ is already the key of fields.next"),
        ("keymap: {form.close: a}", "keymap: form.close: a is a character typed"),
        ("keymap: {checks.all: space}", "keymap: checks.all: space is already the key of checks.toggle"),
        ("keymap: {run.step: \"\\e[2J\"}", "is not a usable key"),
        ("\x1b[2J", "not valid YAML"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_reported_on_one_line_and_ignored(text: str, problem: str) -> None:
    parsed = parse_settings(text.encode())
    assert (parsed.keys, parsed.theme, parsed.notify) == (Keymap(), DEFAULT_THEME, Notify())
    assert len(parsed.problems) == 1
    assert problem in parsed.problems[0]
    assert not has_unsafe_chars(parsed.problems[0]) and "\n" not in parsed.problems[0]


def test_a_file_that_is_not_utf8_is_reported() -> None:
    assert list(parse_settings(b"theme: \xff").problems) == ["the file is not UTF-8 text"]


def test_commands_may_swap_keys_and_reuse_keys_of_other_scopes() -> None:
    swapped = "run.cancel: s, run.step: x"
    assert problems_in(f"keymap: {{{swapped}, episode.next: x, quit.stop: r, list.down: [down, ctrl+y]}}") == []
    # o sorts the table on the same screen
    assert problems_in("keymap: {live.open: 'enter,o', list.choose: enter}") != []
    assert problems_in("keymap: {live.open: 'enter,0', list.choose: enter}") == []


@pytest.mark.parametrize("scope", sorted({command.scope for command in COMMANDS}))
def test_a_character_is_no_key_where_one_types(scope: str) -> None:
    refused = [f"keymap: {id}: å is a character typed into the field" for id in ids_of(scope)]
    for id, problem in zip(ids_of(scope), refused, strict=True):
        assert resolve_keymap({id: "å"})[1] == ([problem] if scope_of(scope).typing else [])
        if scope_of(scope).typing:
            assert resolve_keymap({id: "x"})[1] == [problem.replace("å", "x")]


@pytest.mark.parametrize("scope", sorted(scope.id for scope in SCOPES if scope.modal))
def test_a_key_of_a_dialog_may_be_any_that_neither_the_dialog_nor_the_help_has(scope: str) -> None:
    together = [scope, *scope_of(scope).below, *(other.id for other in SCOPES if scope in other.below)]
    inside = {key for id in ids_of(*together) for key in KEYS[id].split(",")} | {"question_mark"}
    inside |= {"enter"} if scope in QUESTIONS else set()
    command, *_ = ids_of(scope)
    for key in {key for keys in KEYS.values() for key in keys.split(",")} - inside - {"f1", "tab"}:
        if not (scope_of(scope).typing and typed_character(key)):
            assert resolve_keymap({command: key})[1] == [], key
    assert resolve_keymap({command: "f1"})[1] == [f"keymap: {command}: f1 is already the key of app.help"]
    for other in ids_of(scope)[1:]:
        (problem,) = resolve_keymap({command: KEYS[other]})[1]
        assert "is already the key of" in problem or "typed" in problem


def test_a_dialog_may_have_the_keys_of_the_screen_below_it() -> None:
    assert resolve_keymap({"archive.archive": "r", "delete.delete": "j", "report.copy": "R"})[1] == []


def ids_of(*scopes: str) -> list[str]:
    return [id for id in KEYS if COMMANDS[id].scope in scopes]


def test_of_two_conflicting_keys_the_later_one_is_ignored() -> None:
    keys, problems = resolve_keymap({"run.cancel": "c", "run.step": "c", "run.pause": "x"})
    assert keys.overrides == {"run.cancel": "c", "run.pause": "x"}
    assert problems == ["keymap: run.step: c is already the key of run.cancel"]
    keys, problems = resolve_keymap({"run.step": "x", "run.cancel": "nokey"})
    assert (keys.overrides, len(problems)) == ({}, 2), "an ignored key may cause another conflict"


def test_characters_are_stored_by_key_name_and_shown_as_characters() -> None:
    own = {"run.cancel": "#", "run.step": ",", "run.pause": "é", "run.form": "ctrl+f"}
    keys, problems = resolve_keymap({**own, "run.selected": "ctrl+_", "run.battery": "ctrl+^"})
    assert problems == []
    assert keys.overrides["run.cancel"] == "number_sign" and keys.overrides["run.step"] == "comma"
    assert [display_keys(key)[0] for key in keys.overrides.values()] == ["#", ",", "é", "^f", "^_", "^^"]


@given(
    st.dictionaries(st.sampled_from(sorted(KEYS)), st.sampled_from([*"abjqsx?", "enter", "escape", "tab", "ctrl+p"]))
)
@settings(max_examples=examples(40), deadline=None)
def test_no_requested_keymap_gives_a_key_two_commands_at_the_same_time(requested: dict[str, str]) -> None:
    keys, problems = resolve_keymap(requested)
    assert len(keys.overrides) + len(problems) == len(requested)
    for command in (COMMANDS[id] for id in keys.overrides):
        others = [other for other in COMMANDS if other.id != command.id and apply_together(command, other)]
        now = {(other.id, key) for other in others for key in keys.keys_for(other).split(",")}
        before = {
            (other.id, key) for other in others for key in other.keys.split(",") if key in command.keys.split(",")
        }
        assert {(id, key) for id, key in now - before if key in keys.keys_for(command).split(",")} == set()
    assert resolve_keymap(keys.overrides)[1] == []


@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
)
@settings(max_examples=examples(50), deadline=None)
def test_any_bytes_are_parsed_or_reported(data: bytes) -> None:
    parsed = parse_settings(data)
    assert parsed.theme == DEFAULT_THEME or parsed.problems == ()
    assert not any(has_unsafe_chars(problem) or "\n" in problem for problem in parsed.problems)


def test_nested_aliases_are_limited() -> None:
    aliases = [f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghij")]
    (problem,) = problems_in("\n".join(["a: &a [x, x]", *aliases, "keymap: *j"]))
    assert "more than 20000 values" in problem


def test_the_config_path_follows_the_xdg_specification() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/agentgym-console/console.yaml")
    assert config_path({"XDG_CONFIG_HOME": "c", "HOME": "/h"}) == Path("/h/.config/agentgym-console/console.yaml")
    assert config_path({}) == Path("/.config/agentgym-console/console.yaml")
    assert config_path({"HOME": "relative/x"}) == Path("/.config/agentgym-console/console.yaml")


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "console.yaml"
    assert read_settings(path) == Settings()
    assert read_settings(path / "below") == Settings()
    os.mkfifo(path)
    assert "cannot be read" in read_settings(path).problems[0]
    path.unlink()
    path.write_bytes(b"#" * 70_000)
    assert "cannot be read" in read_settings(path).problems[0]
    path.unlink()
    path.mkdir()
    assert "cannot be read: Is a directory" in read_settings(path).problems[0]
    path.rmdir()
    path.symlink_to(path)
    assert "cannot be read: Too many levels" in read_settings(path).problems[0]
    path.unlink()
    (tmp_path / "mine.yaml").write_text("theme: nord")
    path.symlink_to("mine.yaml")
    assert read_settings(path).theme == "nord"


def test_the_default_file_changes_nothing_even_with_all_lines_uncommented() -> None:
    text = default_settings_text(Path("/x", HOSTILE.replace("\0", "")))
    assert not has_unsafe_chars(text) and parse_settings(text.encode()) == Settings()
    intro, _, rest = text.partition("# notify:")
    assert all(line.startswith("#") or not line for line in intro.splitlines())
    names = ("notify:", "theme:", "keymap:", " ")
    lines = [line[2:] for line in f"# notify:{rest}".splitlines() if line[2:].startswith(names)]
    parsed = parse_settings("\n".join(lines).encode())
    assert parsed.problems == () and (parsed.theme, parsed.notify) == (DEFAULT_THEME, Notify())
    assert parsed.keys.overrides == KEYS


def test_the_config_command_prints_and_writes_the_file_once_and_reports_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "agentgym-console" / "console.yaml"
    assert main(["config"]) == 0
    assert capsys.readouterr().out == default_settings_text(path) and not path.exists()
    assert main(["config", "--write"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text() == default_settings_text(path) and path.stat().st_mode & 0o777 == 0o600
    path.write_text("theme: mine")
    assert main(["config", "--write"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "agentgym-tui: already exists; not changed",
        "agentgym-tui: theme: unknown theme mine",
    ]
    assert path.read_text() == "theme: mine"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path))
    assert main(["config", "--write"]) == 2
    assert "cannot be written" in capsys.readouterr().err

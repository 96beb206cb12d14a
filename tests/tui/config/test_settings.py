"""The user's configuration: what it says is taken, what is wrong in it is told in a line and left as it was."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.cli import main
from agentgym_tui.commands.keymap import COMMANDS, Keymap, display_keys
from agentgym_tui.config.settings import (
    DEFAULT_THEME,
    Notify,
    Settings,
    config_path,
    default_settings_text,
    parse_settings,
    read_settings,
)
from agentgym_tui.config.user_keymap import resolve_keymap
from agentgym_tui.safe_text import has_unsafe_chars
from tests.support.console.samples import HOSTILE

KEYS = {command.id: command.keys for command in COMMANDS}


def said(text: str) -> list[str]:
    return list(parse_settings(text.encode()).problems)


def test_everything_that_can_be_set() -> None:
    found = parse_settings(
        b"keymap: {run.selected: e, list.down: [j, down, 5], run.battery: '?, B'}\n"
        b"theme: nord\nnotify: {toast: false, bell: true, desktop: true}\nkeymap2: x\n"
    )
    assert found.theme == "nord"
    assert found.notify == Notify(toast=False, bell=True, desktop=True)
    assert found.keys.overrides == {"run.selected": "e", "list.down": "j,down,5"}
    assert list(found.problems) == [
        "unknown setting keymap2",
        "keymap: run.battery: ? is already the key of app.help",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "theme: default\n", "keymap:\nnotify:\ntheme:\n"])
def test_what_says_nothing_changes_nothing(text: str) -> None:
    assert parse_settings(text.encode()) == Settings()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a", "expected keymap:, theme: and notify:"),
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
        ("keymap: {form.close: a}", "keymap: form.close: a is a character typed"),
        ("keymap: {checks.all: space}", "keymap: checks.all: space is already the key of checks.toggle"),
        ("keymap: {run.step: \"\\e[2J\"}", "is not a usable key"),
        ("\x1b[2J", "not valid YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_a_line_and_left_as_it_was(text: str, complaint: str) -> None:
    found = parse_settings(text.encode())
    assert (found.keys, found.theme, found.notify) == (Keymap(), DEFAULT_THEME, Notify())
    assert len(found.problems) == 1
    assert complaint in found.problems[0]
    assert not has_unsafe_chars(found.problems[0]) and "\n" not in found.problems[0]


def test_no_text_is_told_too() -> None:
    assert list(parse_settings(b"theme: \xff").problems) == ["the file is not UTF-8 text"]


def test_two_commands_may_change_places_and_keys_of_other_places_are_free() -> None:
    assert said("keymap: {run.cancel: s, run.step: x, episode.next: r, quit.stop: r, list.down: [down, ctrl+n]}") == []
    assert said("keymap: {live.open: 'enter,o', list.choose: enter}") != []  # o is of the table on the same screen
    assert said("keymap: {live.open: 'enter,5', list.choose: enter}") == []


def test_of_two_that_clash_the_later_one_stays_as_it_was() -> None:
    keys, problems = resolve_keymap({"run.cancel": "c", "run.step": "c", "run.pause": "x"})
    assert keys.overrides == {"run.cancel": "c", "run.pause": "x"}
    assert problems == ["keymap: run.step: c is already the key of run.cancel"]


def test_a_refusal_that_makes_another_one_necessary() -> None:
    keys, problems = resolve_keymap({"run.step": "x", "run.cancel": "nokey"})
    assert keys.overrides == {}
    assert len(problems) == 2


def test_characters_have_names() -> None:
    keys, problems = resolve_keymap({"run.cancel": "#", "run.step": ",", "run.pause": "é", "run.form": "ctrl+f"})
    assert problems == []
    assert keys.overrides["run.cancel"] == "number_sign" and keys.overrides["run.step"] == "comma"
    assert [display_keys(key)[0] for key in keys.overrides.values()] == ["#", ",", "é", "^f"]


@given(
    st.dictionaries(st.sampled_from(sorted(KEYS)), st.sampled_from([*"abjqsx?", "enter", "escape", "tab", "ctrl+p"]))
)
@settings(max_examples=40, deadline=None)
def test_whatever_is_wished_no_key_means_two_things(wished: dict[str, str]) -> None:
    keys, problems = resolve_keymap(wished)
    assert len(keys.overrides) + len(problems) == len(wished)
    for place in {command.scope for command in COMMANDS}:
        held = [key for c in COMMANDS if c.scope == place for key in keys.keys_for(c).split(",")]
        assert len(held) == len(set(held)), place
    assert resolve_keymap(keys.overrides).problems == []


@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
)
@settings(max_examples=50, deadline=None)
def test_no_file_is_too_strange(data: bytes) -> None:
    found = parse_settings(data)
    assert found.theme == DEFAULT_THEME or found.problems == ()
    assert not any(has_unsafe_chars(complaint) or "\n" in complaint for complaint in found.problems)


def test_a_document_that_grows_without_end_does_not() -> None:
    grows = [f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghij")]
    [complaint] = said("\n".join(["a: &a [x, x]", *grows, "keymap: *j"]))
    assert "more than 20000 values" in complaint


# The file.


def test_where_it_is() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/agentgym-console/console.yaml")
    assert config_path({"XDG_CONFIG_HOME": "c", "HOME": "/h"}) == Path("/h/.config/agentgym-console/console.yaml")
    assert config_path({}) == Path("/.config/agentgym-console/console.yaml")
    assert config_path({"HOME": "relative/x"}) == Path("/.config/agentgym-console/console.yaml")


def test_files_that_are_none(tmp_path: Path) -> None:
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


def test_the_one_to_begin_with_changes_nothing_also_with_all_of_its_lines_in_force() -> None:
    text = default_settings_text(Path("/x", HOSTILE.replace("\0", "")))
    assert not has_unsafe_chars(text) and parse_settings(text.encode()) == Settings()
    said, _, rest = text.partition("# notify:")
    assert all(line.startswith("#") or not line for line in said.splitlines())
    names = ("notify:", "theme:", "keymap:", " ")
    lines = [line[2:] for line in f"# notify:{rest}".splitlines() if line[2:].startswith(names)]
    found = parse_settings("\n".join(lines).encode())
    assert found.problems == () and (found.theme, found.notify) == (DEFAULT_THEME, Notify())
    assert found.keys.overrides == KEYS


def test_the_command_prints_it_writes_it_once_and_says_what_is_wrong(
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

"""The user's settings: keys, theme and notifications. Invalid settings are reported and ignored.

Also the default settings file with comments, which ``agentgym-tui config`` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from textual.binding import Binding
from textual.keys import Keys

from agentgym_tui.commands.keymap import COMMANDS, FIXED_KEYS, Keymap, apply_together, display_keys, typed_character
from agentgym_tui.commands.registry import Command, scope_of
from agentgym_tui.safe_text import sanitize_line
from runner.util.files import read_regular, xdg_folder

if TYPE_CHECKING:
    from runner.config.document import YamlValue

DEFAULT_THEME: Final = "textual-dark"
MAX_BYTES: Final = 64 * 1024
MAX_SHOWN_PROBLEMS: Final = 5
MAX_KEYS_PER_COMMAND: Final = 8

TERMINAL_ALIASES: Final = {
    "ctrl+i": "tab",
    "ctrl+m": "enter",
    "ctrl+h": "backspace",
    "ctrl+left_square_bracket": "escape",
    "ctrl+space": "ctrl+@",
    "ctrl+slash": "ctrl+underscore",
}
"""Keys that terminals cannot distinguish from another key, and that other key."""

_RESERVED_KEYS: Final = (FIXED_KEYS["focus.next"], FIXED_KEYS["focus.previous"])
_MODIFIERS: Final = frozenset({"ctrl", "alt", "shift", "super", "hyper", "meta"})
_KEY_NAMES: Final = frozenset(name.value.rpartition("+")[2] for name in Keys if not name.value.startswith("<"))


class Notify(NamedTuple):
    """Which signals announce the end of a batch: a toast, the terminal bell, a desktop notification."""

    toast: bool = True
    bell: bool = False
    desktop: bool = False


class Settings(msgspec.Struct, frozen=True):
    """The user's settings; ``problems`` has one line per invalid setting."""

    keys: Keymap = msgspec.field(default_factory=Keymap)
    theme: str = DEFAULT_THEME
    notify: Notify = msgspec.field(default_factory=Notify)
    problems: tuple[str, ...] = ()


def config_path(environ: Mapping[str, str]) -> Path:
    return xdg_folder(environ, "XDG_CONFIG_HOME", ".config") / "console.yaml"


def read_settings(path: Path) -> Settings:
    """Read the settings file. Without a file, return the defaults; this does not import a YAML parser."""
    try:
        return parse_settings(read_regular(path, MAX_BYTES)[0])
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as exc:
        return Settings(problems=(f"the file cannot be read: {os.strerror(exc.errno or 0)}",))


def parse_settings(data: bytes) -> Settings:
    """Parse the content of a settings file. Each invalid setting keeps its default and adds a line to ``problems``."""
    from runner.config.document import parse_yaml
    from runner.errors import ConfigError

    try:
        document = parse_yaml(data.decode())
    except UnicodeDecodeError:
        return Settings(problems=("the file is not UTF-8 text",))
    except ConfigError as exc:
        return Settings(problems=(sanitize_line(exc),))
    if not isinstance(document, dict | None):
        return Settings(problems=("expected keymap:, theme: and notify:",))
    problems: list[str] = []
    sections: dict[str, dict[str, YamlValue]] = {"keymap": {}, "notify": {}}
    for name, value in (document or {}).items():
        if name in sections and isinstance(value, dict):
            sections[name] = value
        elif name in sections and value is not None:
            problems.append(f"{name}: expected names with values below it")
        elif name not in sections and name != "theme":
            problems.append(f"unknown setting {sanitize_line(name, 40)}")
    keys, key_problems = resolve_keymap(dict(_key_entries(sections["keymap"], problems)))
    problems += key_problems
    theme = _theme((document or {}).get("theme"), problems)
    notify = Notify(**dict(_switches(sections["notify"], problems)))
    return Settings(keys, theme, notify, tuple(problems))


def _key_entries(section: Mapping[str, YamlValue], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield command ids with their keys, joined with commas; in the file these are a text, a number or a list."""
    for id, value in section.items():
        keys = value if isinstance(value, list) else [value]
        if keys and all(isinstance(key, str) or type(key) is int for key in keys):
            yield id, ",".join(map(str, keys))
        else:
            problems.append(f"keymap: {sanitize_line(id, 40)}: expected one or more keys")


def _theme(value: YamlValue, problems: list[str]) -> str:
    from textual.theme import BUILTIN_THEMES

    if isinstance(value, str) and value in BUILTIN_THEMES:
        return value
    if value not in (None, "default"):
        problems.append(f"theme: unknown theme {sanitize_line(value, 40)}")
    return DEFAULT_THEME


def _switches(section: Mapping[str, YamlValue], problems: list[str]) -> Iterator[tuple[str, bool]]:
    for name, value in section.items():
        if name in Notify._fields and isinstance(value, bool):
            yield name, value
        else:
            text = "expected toast, bell or desktop with true or false"
            problems.append(f"notify: {sanitize_line(name, 40)}: {text}")


def problem_summary(problems: Sequence[str]) -> str:
    n_more = len(problems) - MAX_SHOWN_PROBLEMS
    rest = [f"and {n_more} more; run agentgym-tui config to see all"] if n_more > 0 else []
    return "\n".join(["console.yaml, ignored settings:", *problems[:MAX_SHOWN_PROBLEMS], *rest])


def resolve_keymap(requested: Mapping[str, str]) -> tuple[Keymap, list[str]]:
    """Return the keymap with all valid keys of the user, by command id, and one line per rejected entry."""
    changed: dict[str, str] = {}
    problems: list[str] = []
    for id, keys in requested.items():
        names = [_key_name(key) for key in ([keys] if keys == "," else keys.split(","))]
        if (command := COMMANDS.get(id)) is None:
            problems.append(f"keymap: unknown command {sanitize_line(id, 40)}")
        elif problem := _key_problem(command, names):
            problems.append(f"keymap: {id}: {problem}")
        else:
            changed[id] = ",".join(dict.fromkeys(names))
    while (conflict := _find_conflict(changed)) is not None:
        id, problem = conflict
        del changed[id]
        problems.append(f"keymap: {id}: {problem}")
    return Keymap(changed), problems


def _key_name(key: str) -> str:
    """Return Textual's name of a key: that of ``?`` is ``question_mark``."""
    key = "comma" if key == "," else key.strip()
    modifiers, plus, last = key.rpartition("+")
    if not modifiers or len(last) != 1 or key == "ctrl+@":
        return next(iter(Binding.make_bindings([Binding(key, "")]))).key if key else ""
    return modifiers + plus + _key_name(last.lower() if modifiers == "ctrl" else last)


def _key_problem(command: Command, names: Sequence[str]) -> str:
    """Return why new keys cannot be those of a command; "" if they can."""
    for key in names:
        *modifiers, name = key.split("+")
        is_key = name in _KEY_NAMES or typed_character(name) is not None
        reason = ""
        if alias := key[-1].upper() if key[:-1] == "shift+" else TERMINAL_ALIASES.get(key):
            reason = f"sent as {alias} by terminals"
        elif key in _RESERVED_KEYS or not is_key or not _MODIFIERS.issuperset(modifiers):
            reason = "not a usable key"
        elif scope_of(command.scope).typing and typed_character(key) is not None:
            reason = "a character typed into the field"
        if reason and key not in command.keys.split(","):
            return f"{sanitize_line(key, 40)} is {reason}"
    return f"more than {MAX_KEYS_PER_COMMAND} keys" if len(names) > MAX_KEYS_PER_COMMAND else ""


def _find_conflict(changed: dict[str, str]) -> tuple[str, str] | None:
    """Return the last changed command that has a key of another command at the same time; None if there is none.

    Two commands that share a key by default may keep sharing it.
    """
    keys = Keymap(changed)
    for command in (COMMANDS[id] for id in reversed(changed)):
        for other in COMMANDS:
            if other.id != command.id and apply_together(command, other):
                shared = {*keys.keys_for(command).split(",")} & {*keys.keys_for(other).split(",")}
                if new := shared - ({*command.keys.split(",")} & {*other.keys.split(",")}):
                    return command.id, f"{display_keys(min(new))[0]} is already the key of {other.id}"
    return None


_HEADER: Final = """\
# The console reads this file when it starts. Invalid settings are reported and ignored.

# How the end of a batch is announced: a toast, the terminal bell, a desktop notification (OSC 9 or 777).
# Bell and desktop notification wait for the end of a battery.
"""


def default_settings_text(path: Path) -> str:
    """Return the content of a settings file that lists every default as a comment; its first line is the path."""
    return f"# {sanitize_line(path, 500)}\n" + "\n".join(_default_lines()) + "\n"


def write_default_settings(path: Path) -> bool:
    """Write the default settings file with mode 0600; return False if the file already exists."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(default_settings_text(path))
    return True


def _default_lines() -> Iterator[str]:
    from textual.theme import BUILTIN_THEMES

    yield _HEADER + "# notify:"
    yield from (f"#   {name}: {str(value).lower()}" for name, value in Notify()._asdict().items())
    themes = ", ".join(sorted(BUILTIN_THEMES))
    yield "\n" + fill(f"One of {themes}.", 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    yield f"# theme: {DEFAULT_THEME}"
    yield "\n# Keys by command, separated by commas; each one a character or a key name."
    yield "# keymap:"
    for scope, commands in groupby(COMMANDS, key=lambda command: command.scope):
        yield f"#   # {scope}"
        yield from (f"#   {command.id}: {command.keys}" for command in commands)

"""The user's settings, and the UI state that is kept between sessions. Invalid ones are ignored."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
from textual.binding import Binding
from textual.keys import Keys

from agentgym_tui.commands import (
    COMMANDS,
    FIXED_KEYS,
    QUESTIONS,
    Command,
    Keymap,
    apply_together,
    display_keys,
    scope_of,
    typed_character,
)
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.query import MAX_CHARS, Sorting
from runner.util.files import read_regular, replace_file, xdg_folder

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

EMPTY: Final = '""'
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
    sets_theme: bool = False  # else the theme that was chosen last applies
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
        return Settings(problems=("only keymap:, theme: and notify: are settings",))
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
    return Settings(keys, theme, notify, (document or {}).get("theme") not in (None, "default"), tuple(problems))


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
        elif names != [""]:
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
        elif command.scope in QUESTIONS and key == "enter":
            reason = "the key of the focused button"
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
        yield from (f"#   {command.id}: {command.keys or EMPTY}" for command in commands)


MAX_STATE_BYTES: Final = 512 * 1024
MAX_NAMES: Final = 40
"""Maximum number of lists, of panes, and of saved queries of a list."""
MAX_QUERIES, MAX_PLACES, MAX_NAME_CHARS = 20, 20, 40
"""Of the queries of a list, and of the places, the ones used last are kept."""

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
_Words = Annotated[str, msgspec.Meta(max_length=MAX_CHARS)]
_Few = msgspec.Meta(max_length=MAX_NAMES)
_Percent = Annotated[int, msgspec.Meta(ge=1, le=99)]


# The UI state. Queries, orders and sizes apply to all sessions; screen and filters only to those of the same place: a
# state directory, a bus, or opened files. The file is untrusted: one that is invalid is ignored.


class _Place(msgspec.Struct):
    screen: _Name = "live"
    filters: Annotated[dict[_Name, _Words], _Few] = {}


class UiState(_Place):
    """UI state that is kept between sessions; what belongs to a list has its name as key.

    Panes have the size in percent of the space that they share with a neighbor; the newest of ``queries`` is the first.
    """

    sorting: Annotated[dict[_Name, Sorting], _Few] = {}
    sizes: Annotated[dict[_Name, _Percent], _Few] = {}
    queries: Annotated[dict[_Name, Annotated[list[_Words], msgspec.Meta(max_length=MAX_QUERIES)]], _Few] = {}
    saved_queries: Annotated[dict[_Name, Annotated[dict[_Name, _Words], _Few]], _Few] = {}
    theme: _Name = ""

    def set_filter(self, view: str, words: str) -> None:
        """Store the query of a list; remove it if it is empty or longer than ``MAX_CHARS`` characters."""
        self.filters.pop(view, None)
        if 0 < len(words) <= MAX_CHARS:
            self.filters[view] = words

    def remember_query(self, view: str, text: str) -> None:
        """Put a query before the last ones of a list; the oldest one is dropped."""
        others = [each for each in self.queries.get(view, ()) if each != text]
        if 0 < len(text) <= MAX_CHARS:
            self.queries[view] = [text, *others][:MAX_QUERIES]

    def save_query(self, view: str, name: str, text: str) -> None:
        """Save a query of a list under a name; an empty query removes the name, as does one past ``MAX_NAMES``."""
        others = {known: query for known, query in self.saved_queries.get(view, {}).items() if known != name}
        added = {name: text} if 0 < len(text) <= MAX_CHARS else {}
        self.saved_queries[view] = dict([*others.items(), *added.items()][-MAX_NAMES:])

    def set_sorting(self, view: str, sorting: Sorting | None) -> None:
        self.sorting.pop(view, None)
        if sorting is not None:
            self.sorting[view] = sorting


class _File(UiState):
    """The state of the last session, and the last screen and filters of each place, by ``_place_key``."""

    places: dict[_Name, _Place] = {}


def state_path(environ: Mapping[str, str]) -> Path:
    return xdg_folder(environ, "XDG_STATE_HOME", ".local/state") / "console.json"


def read_ui_state(path: Path, place: str = "") -> UiState:
    """Read the UI state of a place; without a valid file, return the defaults."""
    file = _read(path)
    own = file.places.get(_place_key(place), _Place())
    return UiState(own.screen, own.filters, file.sorting, file.sizes, file.queries, file.saved_queries, file.theme)


def write_ui_state(path: Path, state: UiState, place: str = "") -> None:
    """Write the UI state file with mode 0600; keep screens and filters of other places."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    places, key = _read(path).places, _place_key(place)
    places.pop(key, None)
    kept = dict([*places.items(), (key, _Place(state.screen, state.filters))][-MAX_PLACES:])
    replace_file(path, msgspec.json.encode(_File(**msgspec.structs.asdict(state), places=kept)))


def _place_key(place: str) -> str:
    return sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]  # a bus address may contain a password


def _read(path: Path) -> _File:
    try:
        document = msgspec.json.decode(read_regular(path, MAX_STATE_BYTES, links=False)[0])
        return msgspec.convert(_sanitized(document), _File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _File()


def _sanitized(value: object) -> object:
    match value:
        case str():
            return sanitize_line(value, MAX_STATE_BYTES)
        case list():
            return [_sanitized(each) for each in value]
        case dict():
            return {_sanitized(name): _sanitized(each) for name, each in value.items()}
    return value

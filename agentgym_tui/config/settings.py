"""The user's settings: keys, theme and notifications. Invalid settings are reported and ignored.

Also the default settings file with comments, which ``agentgym-tui config`` prints.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.commands.keymap import COMMANDS, Keymap
from agentgym_tui.safe_text import sanitize_line
from runner.util.files import read_regular, xdg_folder

if TYPE_CHECKING:
    from runner.config.document import YamlValue

DEFAULT_THEME: Final = "textual-dark"
MAX_BYTES: Final = 64 * 1024
"""Maximum size of the settings file, in bytes."""
MAX_SHOWN_PROBLEMS: Final = 5
"""Maximum number of problems shown when the console starts."""

_Mapping: TypeAlias = "Mapping[str, YamlValue]"


class Notify(NamedTuple):
    """Which signals announce the end of a batch: a toast, the terminal bell, a desktop notification."""

    toast: bool = True
    bell: bool = False
    desktop: bool = False


class Settings(msgspec.Struct, frozen=True):
    """The user's settings.

    Attributes:
        keys: the keymap.
        theme: name of a Textual theme.
        notify: which signals announce the end of a batch.
        problems: one line per invalid setting.
    """

    keys: Keymap = msgspec.field(default_factory=Keymap)
    theme: str = DEFAULT_THEME
    notify: Notify = msgspec.field(default_factory=Notify)
    problems: tuple[str, ...] = ()


def config_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the settings file."""
    return xdg_folder(environ, "XDG_CONFIG_HOME", ".config") / "console.yaml"


def read_settings(path: Path) -> Settings:
    """Read the settings file. Without a file, return the defaults; this does not import a YAML parser."""
    try:
        data = read_regular(path, MAX_BYTES)[0]
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as exc:
        return Settings(problems=(f"the file cannot be read: {os.strerror(exc.errno or 0)}",))
    return parse_settings(data)


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
    if document is None:
        return Settings()
    if not isinstance(document, dict):
        return Settings(problems=("expected keymap:, theme: and notify:",))
    return _validated(document)


def problem_summary(problems: Sequence[str]) -> str:
    """Return the text of a toast: the first ``MAX_SHOWN_PROBLEMS`` problems, and the number of further problems."""
    n_more = len(problems) - MAX_SHOWN_PROBLEMS
    rest = [f"and {n_more} more; run agentgym-tui config to see all"] if n_more > 0 else []
    return "\n".join(["console.yaml, ignored settings:", *problems[:MAX_SHOWN_PROBLEMS], *rest])


def _validated(document: _Mapping) -> Settings:
    from agentgym_tui.config.user_keymap import resolve_keymap

    problems = [
        f"unknown setting {sanitize_line(name, 40)}" for name in document if name not in ("keymap", "theme", "notify")
    ]
    keys, key_problems = resolve_keymap(dict(_key_entries(_section(document, "keymap", problems), problems)))
    problems += key_problems
    theme = _theme(document.get("theme"), problems)
    notify = Notify(**dict(_notify_switches(_section(document, "notify", problems), problems)))
    return Settings(keys, theme, notify, tuple(problems))


def _section(document: _Mapping, name: str, problems: list[str]) -> _Mapping:
    section = document.get(name)
    if isinstance(section, dict):
        return section
    if section is not None:
        problems.append(f"{name}: expected names with values below it")
    return {}


def _key_entries(section: _Mapping, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a command id and its keys, joined with commas.

    The keys in the settings file may be a text, a number or a list.
    """
    for command_id, value in section.items():
        keys = value if isinstance(value, list) else [value]
        if keys and all(isinstance(key, str) or type(key) is int for key in keys):
            yield command_id, ",".join(map(str, keys))
        else:
            problems.append(f"keymap: {sanitize_line(command_id, 40)}: expected one or more keys")


def _theme(value: YamlValue, problems: list[str]) -> str:
    from textual.theme import BUILTIN_THEMES

    if value is None or value == "default":
        return DEFAULT_THEME
    if isinstance(value, str) and value in BUILTIN_THEMES:
        return value
    problems.append(f"theme: unknown theme {sanitize_line(value, 40)}")
    return DEFAULT_THEME


def _notify_switches(section: _Mapping, problems: list[str]) -> Iterator[tuple[str, bool]]:
    for name, value in section.items():
        if name in Notify._fields and isinstance(value, bool):
            yield name, value
        else:
            text = "notify: {}: expected toast, bell or desktop with true or false"
            problems.append(text.format(sanitize_line(name, 40)))


_HEADER: Final = """\
# The console reads this file when it starts. Invalid settings are reported and ignored.

# How the end of a batch is announced: a toast, the terminal bell, a desktop notification (OSC 9 or 777).
# Bell and desktop notification wait for the end of a battery.
"""


def default_settings_text(path: Path) -> str:
    """Return the content of a settings file that lists every default as a comment; its first line is the path."""
    return "".join(["# ", sanitize_line(path, 500), "\n", ("\n".join(_default_lines()) + "\n")])


def write_default_settings(path: Path) -> bool:
    """Write the default settings file with mode 0600; return False if the file already exists.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(default_settings_text(path))
        return True
    return False


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

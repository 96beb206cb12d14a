"""The user's configuration: keys, theme, what is done when a batch ends. What is wrong in it is told and left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.commands.keymap import Keymap
from agentgym_tui.config.paths import read_small_file, xdg_folder
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted

if TYPE_CHECKING:
    from runner.config.document import YamlValue
import contextlib
from itertools import groupby
from textwrap import fill

from agentgym_tui.commands.keymap import COMMANDS

DEFAULT_THEME: Final = "textual-dark"
MAX_SHOWN_PROBLEMS: Final = 5
"""That are told; one has to begin somewhere."""

_Mapping: TypeAlias = "Mapping[str, Value]"


class Notify(NamedTuple):
    """How the end of a batch is told: above the screen, by the terminal's bell, on the desktop."""

    toast: bool = True
    bell: bool = False
    desktop: bool = False


class Settings(msgspec.Struct, frozen=True):
    """What the configuration says.

    Attributes:
        complaints: a line for each thing in it that cannot be used.
    """

    keys: Keymap = msgspec.field(default_factory=Keymap)
    theme: str = DEFAULT_THEME
    notify: Notify = msgspec.field(default_factory=Notify)
    problems: tuple[SafeText, ...] = ()


def config_path(environ: Mapping[str, str]) -> Path:
    """Where the configuration is, or would be."""
    return xdg_folder(environ, "XDG_CONFIG_HOME", ".config") / "console.yaml"


def read_settings(path: Path) -> Settings:
    """Read the configuration; where there is none everything is as usual, and nothing is imported for it."""
    try:
        data = read_small_file(path, links=True)
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as exc:
        return Settings(problems=(trusted(f"it cannot be read: {os.strerror(exc.errno or 0)}"),))
    return parse_settings(data)


def parse_settings(data: bytes) -> Settings:
    """The settings in the bytes of a file, as far as they can be used."""
    from runner.config.document import parse_yaml
    from runner.errors import ConfigError

    try:
        document = parse_yaml(data.decode())
    except UnicodeDecodeError:
        return Settings(problems=(trusted("it is no text in UTF-8"),))
    except ConfigError as exc:
        return Settings(problems=(sanitize_line(exc),))
    if document is None:
        return Settings()
    if not isinstance(document, dict):
        return Settings(problems=(trusted("expected keymap:, theme: and notify:"),))
    return _validated(document)


def problem_summary(problems: Sequence[SafeText]) -> SafeText:
    """What is told of them: a line each, the first few."""
    more = len(problems) - MAX_SHOWN_PROBLEMS
    rest = [trusted(f"and {more} more; agentgym-tui config names them all")] if more > 0 else []
    return join([trusted("console.yaml, otherwise as usual:"), *problems[:MAX_SHOWN_PROBLEMS], *rest], "\n")


def _validated(document: _Mapping) -> Settings:
    from agentgym_tui.config.user_keymap import resolve_keymap

    problems = [
        join([trusted("there is no setting "), sanitize_line(name, 40)])
        for name in document
        if name not in ("keymap", "theme", "notify")
    ]
    keys, unusable = resolve_keymap(dict(_key_entries(_section(document, "keymap", problems), problems)))
    problems += unusable
    theme = _theme(document.get("theme"), problems)
    notify = Notify(**dict(_notify_switches(_section(document, "notify", problems), problems)))
    return Settings(keys, theme, notify, tuple(problems))


def _section(document: _Mapping, name: str, problems: list[SafeText]) -> _Mapping:
    section = document.get(name)
    if isinstance(section, dict):
        return section
    if section is not None:
        problems.append(trusted(f"{name}: expected names with values below it"))
    return {}


def _key_entries(section: _Mapping, problems: list[SafeText]) -> Iterator[tuple[str, str]]:
    """Keys with commas; a list of them will do, and digits need no quotes."""
    for known, value in section.items():
        keys = value if isinstance(value, list) else [value]
        if keys and all(isinstance(key, str) or type(key) is int for key in keys):
            yield known, ",".join(map(str, keys))
        else:
            problems.append(join([trusted("keymap: "), sanitize_line(known, 40), trusted(": expected a key, or some")]))


def _theme(value: YamlValue, problems: list[SafeText]) -> str:
    from textual.theme import BUILTIN_THEMES

    if value is None or value == "default":
        return DEFAULT_THEME
    if isinstance(value, str) and value in BUILTIN_THEMES:
        return value
    problems.append(join([trusted("theme: there is no "), sanitize_line(value, 40)]))
    return DEFAULT_THEME


def _notify_switches(section: _Mapping, problems: list[SafeText]) -> Iterator[tuple[str, bool]]:
    for name, value in section.items():
        if name in Notify._fields and isinstance(value, bool):
            yield name, value
        else:
            problems.append(
                join(
                    [
                        trusted("notify: "),
                        sanitize_line(name, 40),
                        trusted(": expected toast, bell or desktop, true or false"),
                    ]
                )
            )


_HEADER: Final = """\
# The console reads this file when it starts. What cannot be used is told there, and stays as it is here.

# How the end of a batch is told: above the screen, by the terminal's bell, as a message on the desktop (OSC 9 or 777).
# Bell and message wait for the end of a battery.
"""


def default_settings_text(path: Path) -> SafeText:
    """A file of settings that changes nothing, and names where it belongs."""
    return join([trusted("# "), sanitize_line(path, 500), trusted("\n"), trusted("\n".join(_default_lines()) + "\n")])


def write_default_settings(path: Path) -> bool:
    """Write it for this user alone; False where there is a file already.

    Raises:
        OSError: when it cannot be written.
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
    yield "\n# Keys by command: one, or some with commas; characters as such or by name."
    yield "# keymap:"
    for place, commands in groupby(COMMANDS, key=lambda command: command.scope):
        yield f"#   # {place}"
        yield from (f"#   {command.id}: {command.keys}" for command in commands)

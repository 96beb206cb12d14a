"""The user's configuration: keys, theme, what is done when a batch ends. What is wrong in it is told and left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from agentgym_tui.commands.keymap import Keys
from agentgym_tui.config.paths import folder, read_small
from agentgym_tui.safe_text import Safe, join, line, own

if TYPE_CHECKING:
    from runner.config.document import Value

DEFAULT_THEME: Final = "textual-dark"
MAX_COMPLAINTS: Final = 5
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

    keys: Keys = msgspec.field(default_factory=Keys)
    theme: str = DEFAULT_THEME
    notify: Notify = msgspec.field(default_factory=Notify)
    complaints: tuple[Safe, ...] = ()


def config_path(environ: Mapping[str, str]) -> Path:
    """Where the configuration is, or would be."""
    return folder(environ, "XDG_CONFIG_HOME", ".config") / "console.yaml"


def read_settings(path: Path) -> Settings:
    """Read the configuration; where there is none everything is as usual, and nothing is imported for it."""
    try:
        data = read_small(path, links=True)
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as exc:
        return Settings(complaints=(own(f"it cannot be read: {os.strerror(exc.errno or 0)}"),))
    return parsed(data)


def parsed(data: bytes) -> Settings:
    """The settings in the bytes of a file, as far as they can be used."""
    from runner.config.document import parse
    from runner.errors import ConfigError

    try:
        document = parse(data.decode())
    except UnicodeDecodeError:
        return Settings(complaints=(own("it is no text in UTF-8"),))
    except ConfigError as exc:
        return Settings(complaints=(line(exc),))
    if document is None:
        return Settings()
    if not isinstance(document, dict):
        return Settings(complaints=(own("expected keymap:, theme: and notify:"),))
    return _checked(document)


def complaint_text(complaints: Sequence[Safe]) -> Safe:
    """What is told of them: a line each, the first few."""
    more = len(complaints) - MAX_COMPLAINTS
    rest = [own(f"and {more} more; agentgym-tui config names them all")] if more > 0 else []
    return join([own("console.yaml, otherwise as usual:"), *complaints[:MAX_COMPLAINTS], *rest], "\n")


def _checked(document: _Mapping) -> Settings:
    from agentgym_tui.config.user_keymap import resolve

    complaints = [
        join([own("there is no setting "), line(name, 40)])
        for name in document
        if name not in ("keymap", "theme", "notify")
    ]
    keys, unusable = resolve(dict(_keys(_section(document, "keymap", complaints), complaints)))
    complaints += unusable
    theme = _theme(document.get("theme"), complaints)
    notify = Notify(**dict(_switches(_section(document, "notify", complaints), complaints)))
    return Settings(keys, theme, notify, tuple(complaints))


def _section(document: _Mapping, name: str, complaints: list[Safe]) -> _Mapping:
    section = document.get(name)
    if isinstance(section, dict):
        return section
    if section is not None:
        complaints.append(own(f"{name}: expected names with values below it"))
    return {}


def _keys(section: _Mapping, complaints: list[Safe]) -> Iterator[tuple[str, str]]:
    """Keys with commas; a list of them will do, and digits need no quotes."""
    for known, value in section.items():
        keys = value if isinstance(value, list) else [value]
        if keys and all(isinstance(key, str) or type(key) is int for key in keys):
            yield known, ",".join(map(str, keys))
        else:
            complaints.append(join([own("keymap: "), line(known, 40), own(": expected a key, or some")]))


def _theme(value: Value, complaints: list[Safe]) -> str:
    from textual.theme import BUILTIN_THEMES

    if value is None or value == "default":
        return DEFAULT_THEME
    if isinstance(value, str) and value in BUILTIN_THEMES:
        return value
    complaints.append(join([own("theme: there is no "), line(value, 40)]))
    return DEFAULT_THEME


def _switches(section: _Mapping, complaints: list[Safe]) -> Iterator[tuple[str, bool]]:
    for name, value in section.items():
        if name in Notify._fields and isinstance(value, bool):
            yield name, value
        else:
            complaints.append(
                join([own("notify: "), line(name, 40), own(": expected toast, bell or desktop, true or false")])
            )

"""Keys of the user's own: what is no command, no key, or would hide another command, is told and left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final, NamedTuple

from textual.binding import Binding
from textual.keys import Keys as Names

from agentgym_tui.commands.keymap import COMMANDS, Command, Keys, Place, character, shown_keys
from agentgym_tui.safe_text import Safe, join, line, own

MAX_KEYS: Final = 8
"""Of one command."""

RESERVED: Final = frozenset({"tab", "shift+tab"})
"""They go from pane to pane."""

SENT_AS: Final = {
    "ctrl+i": "tab",
    "ctrl+m": "enter",
    "ctrl+h": "backspace",
    "ctrl+left_square_bracket": "escape",
    "ctrl+space": "ctrl+@",
    "ctrl+slash": "ctrl+underscore",
}
"""What terminals send, and nobody could tell apart from another key."""

_COMMANDS: Final = {command.id: command for command in COMMANDS}
_MODIFIERS: Final = frozenset({"ctrl", "alt", "shift", "super", "hyper", "meta"})
_NAMED: Final = frozenset(name.value.rpartition("+")[2] for name in Names if not name.value.startswith("<"))
_SHARED: Final[frozenset[Place]] = frozenset({"everywhere", "list", "table"})
"""Their keys work on each screen."""

_ALONE: Final[frozenset[Place]] = frozenset(
    {"filter", "entry", "dialog", "form", "checks", "choice", "quit", "cancel", "palette"}
)
_DIALOGS: Final[tuple[frozenset[Place], ...]] = (frozenset({"dialog", "list"}), frozenset({"form", "checks", "choice"}))
_TYPED: Final[frozenset[Place]] = frozenset({"filter", "entry", "form", "palette"})
"""Where characters are typed into a field."""


class Resolved(NamedTuple):
    """The keys that hold, and a line for each that does not."""

    keys: Keys
    complaints: list[Safe]


def resolve(wanted: Mapping[str, str]) -> Resolved:
    """Take keys, with commas, by the ids of their commands; of two that clash the later one stays as it was."""
    changed: dict[str, str] = {}
    complaints: list[Safe] = []
    for known, keys in wanted.items():
        try:
            changed[known] = _usable(_known(known), keys)
        except _Refused as exc:
            complaints.append(exc.reason)
    while (clash := _clash(changed)) is not None:
        del changed[clash.changed]
        complaints.append(clash.reason)
    return Resolved(Keys(changed), complaints)


class _Refused(Exception):
    def __init__(self, reason: Safe) -> None:
        super().__init__(reason)
        self.reason = reason


class _Clash(NamedTuple):
    changed: str
    reason: Safe


def _known(known: str) -> Command:
    if known not in _COMMANDS:
        raise _Refused(join([own("keymap: there is no command "), line(known, 40)]))
    return _COMMANDS[known]


def _usable(command: Command, keys: str) -> str:
    """The names of the keys."""
    names = [_name(key) for key in ([keys] if keys == "," else keys.split(","))]
    others = [key for key in names if key not in command.keys.split(",")]
    for key in others:
        if (why := _unusable(command, key)) is not None:
            raise _Refused(join([own(f"keymap: {command.id}: "), line(key, 40), own(f" is {why}")]))
    if len(names) > MAX_KEYS:
        raise _Refused(own(f"keymap: {command.id}: more than {MAX_KEYS} keys"))
    return ",".join(dict.fromkeys(names))


def _unusable(command: Command, key: str) -> str | None:
    """Why a key cannot be had, None when it can."""
    if (sent := _sent_as(key)) is not None:
        return f"sent as {sent} by terminals"
    if not _is_key(key):
        return "no key that can be used"
    typed = command.place in _TYPED and character(key) is not None
    return "typed into the field there" if typed else None


def _name(key: str) -> str:
    """A character's name as bindings have it."""
    key = "comma" if key == "," else key.strip()
    modifiers, plus, last = key.rpartition("+")
    if not modifiers or len(last) != 1 or key == "ctrl+@":
        return next(iter(Binding.make_bindings([Binding(key, "")]))).key if key else ""
    return modifiers + plus + _name(last.lower() if modifiers == "ctrl" else last)


def _sent_as(key: str) -> str | None:
    """What a terminal sends in its place, None where it has a key of its own."""
    if key.startswith("shift+") and len(key) == len("shift+a"):
        return key[-1].upper()
    return SENT_AS.get(key)


def _is_key(key: str) -> bool:
    *modifiers, name = key.split("+")
    if key in RESERVED or not _MODIFIERS.issuperset(modifiers):
        return False
    return name in _NAMED or character(name) is not None


def _clash(changed: Mapping[str, str]) -> _Clash | None:
    """The last changed command whose key another one has in the same place; those that share one from the start may."""
    keys, order = Keys(changed), list(changed)
    found = (
        (a, b, key)
        for a, b in combinations(COMMANDS, 2)
        if (a.id in changed or b.id in changed) and _meet(a.place, b.place)
        for key in _common(keys.of(a), keys.of(b))
        if key not in _common(a.keys, b.keys)
    )
    clashes = list(found)
    if not clashes:
        return None
    a, b, key = max(clashes, key=lambda clash: max(order.index(each.id) for each in clash[:2] if each.id in changed))
    if a.id not in changed or (b.id in changed and order.index(b.id) > order.index(a.id)):
        a, b = b, a
    return _Clash(a.id, own(f"keymap: {a.id}: {shown_keys(key)[0]} is the key of {b.id} already"))


def _common(some: str, others: str) -> Iterator[str]:
    return (key for key in some.split(",") if key in others.split(","))


def _meet(one: Place, other: Place) -> bool:
    """Whether the keys of two places may be wanted at the same time."""
    both = {one, other}
    if one == other or any(both <= dialog for dialog in _DIALOGS):
        return True
    return not both & _ALONE and bool(both & _SHARED)

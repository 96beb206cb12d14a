"""Keys of the user's own: what is no command, no key, or would hide another command, is told and left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final, NamedTuple

from textual.binding import Binding
from textual.keys import Keys as Names

from agentgym_tui.commands.keymap import COMMANDS, Command, Keymap, Scope, display_keys, typed_character
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted

MAX_KEYS_PER_COMMAND: Final = 8
"""Of one command."""

RESERVED_KEYS: Final = frozenset({"tab", "shift+tab"})
"""They go from pane to pane."""

TERMINAL_ALIASES: Final = {
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
_KEY_NAMES: Final = frozenset(name.value.rpartition("+")[2] for name in Names if not name.value.startswith("<"))
_SHARED_SCOPES: Final[frozenset[Scope]] = frozenset({"everywhere", "list", "table"})
"""Their keys work on each screen."""

_MODAL_SCOPES: Final[frozenset[Scope]] = frozenset(
    {"filter", "entry", "dialog", "form", "checks", "choice", "quit", "cancel", "palette"}
)
_DIALOG_SCOPES: Final[tuple[frozenset[Scope], ...]] = (
    frozenset({"dialog", "list"}),
    frozenset({"form", "checks", "choice"}),
)
_TYPING_SCOPES: Final[frozenset[Scope]] = frozenset({"filter", "entry", "form", "palette"})
"""Where characters are typed into a field."""


class ResolvedKeymap(NamedTuple):
    """The keys that hold, and a line for each that does not."""

    keys: Keymap
    problems: list[SafeText]


def resolve_keymap(wanted: Mapping[str, str]) -> ResolvedKeymap:
    """Take keys, with commas, by the ids of their commands; of two that clash the later one stays as it was."""
    changed: dict[str, str] = {}
    problems: list[SafeText] = []
    for known, keys in wanted.items():
        try:
            changed[known] = _validated_keys(_command(known), keys)
        except _KeyRejected as exc:
            problems.append(exc.reason)
    while (clash := _find_conflict(changed)) is not None:
        del changed[clash.changed]
        problems.append(clash.reason)
    return ResolvedKeymap(Keymap(changed), problems)


class _KeyRejected(Exception):
    def __init__(self, reason: SafeText) -> None:
        super().__init__(reason)
        self.reason = reason


class _Conflict(NamedTuple):
    changed: str
    reason: SafeText


def _command(known: str) -> Command:
    if known not in _COMMANDS:
        raise _KeyRejected(join([trusted("keymap: there is no command "), sanitize_line(known, 40)]))
    return _COMMANDS[known]


def _validated_keys(command: Command, keys: str) -> str:
    """The names of the keys."""
    names = [_key_name(key) for key in ([keys] if keys == "," else keys.split(","))]
    others = [key for key in names if key not in command.keys.split(",")]
    for key in others:
        if (why := _rejection_reason(command, key)) is not None:
            raise _KeyRejected(
                join([trusted(f"keymap: {command.id}: "), sanitize_line(key, 40), trusted(f" is {why}")])
            )
    if len(names) > MAX_KEYS_PER_COMMAND:
        raise _KeyRejected(trusted(f"keymap: {command.id}: more than {MAX_KEYS_PER_COMMAND} keys"))
    return ",".join(dict.fromkeys(names))


def _rejection_reason(command: Command, key: str) -> str | None:
    """Why a key cannot be had, None when it can."""
    if (sent := _terminal_alias(key)) is not None:
        return f"sent as {sent} by terminals"
    if not _is_key(key):
        return "no key that can be used"
    typed = command.scope in _TYPING_SCOPES and typed_character(key) is not None
    return "typed into the field there" if typed else None


def _key_name(key: str) -> str:
    """A character's name as bindings have it."""
    key = "comma" if key == "," else key.strip()
    modifiers, plus, last = key.rpartition("+")
    if not modifiers or len(last) != 1 or key == "ctrl+@":
        return next(iter(Binding.make_bindings([Binding(key, "")]))).key if key else ""
    return modifiers + plus + _key_name(last.lower() if modifiers == "ctrl" else last)


def _terminal_alias(key: str) -> str | None:
    """What a terminal sends in its place, None where it has a key of its own."""
    if key.startswith("shift+") and len(key) == len("shift+a"):
        return key[-1].upper()
    return TERMINAL_ALIASES.get(key)


def _is_key(key: str) -> bool:
    *modifiers, name = key.split("+")
    if key in RESERVED_KEYS or not _MODIFIERS.issuperset(modifiers):
        return False
    return name in _KEY_NAMES or typed_character(name) is not None


def _find_conflict(changed: Mapping[str, str]) -> _Conflict | None:
    """The last changed command whose key another one has in the same place; those that share one from the start may."""
    keys, order = Keymap(changed), list(changed)
    found = (
        (a, b, key)
        for a, b in combinations(COMMANDS, 2)
        if (a.id in changed or b.id in changed) and _scopes_overlap(a.scope, b.scope)
        for key in _shared_keys(keys.keys_for(a), keys.keys_for(b))
        if key not in _shared_keys(a.keys, b.keys)
    )
    clashes = list(found)
    if not clashes:
        return None
    a, b, key = max(clashes, key=lambda clash: max(order.index(each.id) for each in clash[:2] if each.id in changed))
    if a.id not in changed or (b.id in changed and order.index(b.id) > order.index(a.id)):
        a, b = b, a
    return _Conflict(a.id, trusted(f"keymap: {a.id}: {display_keys(key)[0]} is the key of {b.id} already"))


def _shared_keys(some: str, others: str) -> Iterator[str]:
    return (key for key in some.split(",") if key in others.split(","))


def _scopes_overlap(one: Scope, other: Scope) -> bool:
    """Whether the keys of two places may be wanted at the same time."""
    both = {one, other}
    if one == other or any(both <= dialog for dialog in _DIALOG_SCOPES):
        return True
    return not both & _MODAL_SCOPES and bool(both & _SHARED_SCOPES)

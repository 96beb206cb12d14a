"""Validate the keys that the user set for commands.

Unknown commands, unusable keys and keys that belong to another command are reported and ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final, NamedTuple

from textual.binding import Binding
from textual.keys import Keys

from agentgym_tui.commands.keymap import COMMANDS, FIXED_KEYS, HELP, Keymap, display_keys, typed_character
from agentgym_tui.commands.registry import Command, Scope
from agentgym_tui.safe_text import sanitize_line

MAX_KEYS_PER_COMMAND: Final = 8

RESERVED_KEYS: Final = frozenset({FIXED_KEYS["focus.next"], FIXED_KEYS["focus.previous"]})
"""Keys that move the focus between panes; they cannot be set for a command."""

TERMINAL_ALIASES: Final = {
    "ctrl+i": "tab",
    "ctrl+m": "enter",
    "ctrl+h": "backspace",
    "ctrl+left_square_bracket": "escape",
    "ctrl+space": "ctrl+@",
    "ctrl+slash": "ctrl+underscore",
}
"""Keys that terminals cannot distinguish from another key, and that other key."""

_MODIFIERS: Final = frozenset({"ctrl", "alt", "shift", "super", "hyper", "meta"})
_KEY_NAMES: Final = frozenset(name.value.rpartition("+")[2] for name in Keys if not name.value.startswith("<"))
_SHARED_SCOPES: Final[frozenset[Scope]] = frozenset({"everywhere", "run", "list", "table"})
"""Scopes whose keys work on every screen."""

_IN_DIALOGS: Final[frozenset[Scope]] = frozenset(
    {
        *("dialog", "form", "checks", "choice", "palette", "tags"),
        *("quit", "cancel", "cancel_all", "stop_node", "restart_node", "stop_server"),
    }
)
"""Scopes of dialogs, which have the key of the help, and of the widgets in them."""

_EXCLUSIVE_SCOPES: Final[frozenset[Scope]] = _IN_DIALOGS | {"filter", "entry"}
"""Scopes whose keys never apply together with the shared ones."""

_DIALOG_SCOPES: Final[tuple[frozenset[Scope], ...]] = (
    frozenset({"dialog", "list"}),
    frozenset({"form", "checks", "choice"}),
)
_TYPING_SCOPES: Final[frozenset[Scope]] = frozenset({"filter", "entry", "form", "palette", "tags"})
"""Scopes with a text field that receives characters."""


def resolve_keymap(requested: Mapping[str, str]) -> tuple[Keymap, list[str]]:
    """Return the keymap with all valid keys of the user, given by command id, and one line per rejected entry.

    A changed command whose keys conflict with another command gets its default keys back. If both commands were
    changed, only the command that comes later in ``requested`` does.
    """
    changed: dict[str, str] = {}
    problems: list[str] = []
    for command_id, keys in requested.items():
        try:
            changed[command_id] = _validated_keys(_command(command_id), keys)
        except _KeyRejected as exc:
            problems.append(exc.reason)
    while (conflict := _find_conflict(changed)) is not None:
        del changed[conflict.command_id]
        problems.append(conflict.reason)
    return Keymap(changed), problems


class _KeyRejected(Exception):
    published_error_type = "_Refused"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Conflict(NamedTuple):
    command_id: str
    reason: str


def _command(command_id: str) -> Command:
    if (command := COMMANDS.get(command_id)) is None:
        raise _KeyRejected(f"keymap: unknown command {sanitize_line(command_id, 40)}")
    return command


def _validated_keys(command: Command, keys: str) -> str:
    """Return the Textual names of a command's new keys, separated by commas.

    Raises:
        _KeyRejected: a key is unusable for this command, or there are too many keys.
    """
    names = [_key_name(key) for key in ([keys] if keys == "," else keys.split(","))]
    new_keys = [key for key in names if key not in command.keys.split(",")]
    for key in new_keys:
        if (reason := _rejection_reason(command, key)) is not None:
            raise _KeyRejected(f"keymap: {command.id}: {sanitize_line(key, 40)} is {reason}")
    if len(names) > MAX_KEYS_PER_COMMAND:
        raise _KeyRejected(f"keymap: {command.id}: more than {MAX_KEYS_PER_COMMAND} keys")
    return ",".join(dict.fromkeys(names))


def _rejection_reason(command: Command, key: str) -> str | None:
    if (alias := _terminal_alias(key)) is not None:
        return f"sent as {alias} by terminals"
    if not _is_key(key):
        return "not a usable key"
    typed = command.scope in _TYPING_SCOPES and typed_character(key) is not None
    return "a character typed into the field" if typed else None


def _key_name(key: str) -> str:
    key = "comma" if key == "," else key.strip()
    modifiers, plus, last = key.rpartition("+")
    if not modifiers or len(last) != 1 or key == "ctrl+@":
        return next(iter(Binding.make_bindings([Binding(key, "")]))).key if key else ""
    return modifiers + plus + _key_name(last.lower() if modifiers == "ctrl" else last)


def _terminal_alias(key: str) -> str | None:
    if key.startswith("shift+") and len(key) == len("shift+a"):
        return key[-1].upper()
    return TERMINAL_ALIASES.get(key)


def _is_key(key: str) -> bool:
    *modifiers, name = key.split("+")
    if key in RESERVED_KEYS or not _MODIFIERS.issuperset(modifiers):
        return False
    return name in _KEY_NAMES or typed_character(name) is not None


def _find_conflict(changed: Mapping[str, str]) -> _Conflict | None:
    """Return the last changed command that has a key of another command in an overlapping scope; None if there is none.

    Two commands that share a key by default may keep sharing it.
    """
    keys, order = Keymap(changed), list(changed)
    candidates = (
        (a, b, key)
        for a, b in combinations(COMMANDS, 2)
        if (a.id in changed or b.id in changed) and (_scopes_overlap(a.scope, b.scope) or _is_help_in_dialog(a, b))
        for key in _shared_keys(keys.keys_for(a), keys.keys_for(b))
        if key not in _shared_keys(a.keys, b.keys)
    )
    conflicts = list(candidates)
    if not conflicts:
        return None
    a, b, key = max(
        conflicts, key=lambda conflict: max(order.index(each.id) for each in conflict[:2] if each.id in changed)
    )
    if a.id not in changed or (b.id in changed and order.index(b.id) > order.index(a.id)):
        a, b = b, a
    return _Conflict(a.id, f"keymap: {a.id}: {display_keys(key)[0]} is already the key of {b.id}")


def _is_help_in_dialog(a: Command, b: Command) -> bool:
    return HELP in (a.id, b.id) and bool({a.scope, b.scope} & _IN_DIALOGS)


def _shared_keys(keys: str, other_keys: str) -> Iterator[str]:
    return (key for key in keys.split(",") if key in other_keys.split(","))


def _scopes_overlap(one: Scope, other: Scope) -> bool:
    both = {one, other}
    if one == other or any(both <= dialog for dialog in _DIALOG_SCOPES):
        return True
    return not both & _EXCLUSIVE_SCOPES and bool(both & _SHARED_SCOPES)

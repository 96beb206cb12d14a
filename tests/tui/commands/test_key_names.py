"""Texts name keys through the keymap, so that they name the keys that the user has set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import agentgym_tui
from agentgym_tui.commands import COMMANDS, FIXED_KEYS, Keymap
from agentgym_tui.screens.dialogs.help import help_lines

PACKAGE = Path(agentgym_tui.__file__).parent
KEY_TABLES = {"keymap.py", "alternate_screen.py"}
"""Modules whose literals are the names of keys and terminal modes."""

KEY_NAME = re.compile(r"\b(?:tab|enter|esc|escape|pageup|pagedown|ctrl)\b|\b[Pp]ress [\w?]\b|\b[A-Z] to [a-z]+")


def texts(path: Path) -> Iterator[str]:
    """Yield the literals of a module that have several words, except docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from [node.value] if " " in node.value.strip() else []


def test_no_text_names_a_key_itself() -> None:
    found = [
        f"{path.name}: {text}"
        for path in PACKAGE.rglob("*.py")
        if path.name not in KEY_TABLES
        for text in texts(path)
        if KEY_NAME.search(text)
    ]
    assert found == []


def test_texts_show_the_keys_of_the_user_and_the_fixed_ones() -> None:
    keys = Keymap({"list.bottom": "ctrl+e"})
    assert keys.expand("{list.bottom} or {focus.next}, {field.submit}") == "^e or tab, enter"
    assert not FIXED_KEYS.keys() & {command.id for command in COMMANDS}
    commands = [COMMANDS[id] for id in ("list.page_up", "list.left", "table.sort")]
    shown = "\n".join("".join(cell.text for cell in line) for line in help_lines(commands, keys, 200))
    assert "^u or page up" in shown and "h or ←" in shown and "In sorted tables" in shown
    assert "^e to resume" in shown and "tab moves to the next" in shown and "{" not in shown

"""Keys and pictures in the console's documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgym_tui.commands import COMMANDS, display_keys
from tests.support.command import REPOSITORY

KEY_BY_LABEL = {
    shown: key for c in COMMANDS for key, shown in zip(c.keys.split(","), display_keys(c.keys), strict=True)
}
KEYS = {key for command in COMMANDS for key in command.keys.split(",")} | {":", "tab"}
WORD_KEYS = {"enter", "escape", "space", "tab"}
SIGNS = "␛⚠▲▼✗≈↷|_●⚑✎"
"""Signs on the screen and in queries that the documents name like keys."""


def test_every_documented_key_exists() -> None:
    pages = ("README.md", "docs/run/console.md")
    named = [word for page in pages for word in re.findall(r"`([^`\s]+)`", (REPOSITORY / page).read_text("utf-8"))]
    keys = [key for key in named if len(key) == 1 or key in WORD_KEYS or key.startswith("ctrl+")]
    assert len(keys) > 20
    assert [key for key in keys if KEY_BY_LABEL.get(key, key) not in KEYS and key not in SIGNS] == []


@pytest.mark.parametrize("path", ["README.md", "docs/run/console.md"])
def test_every_picture_exists_and_is_small(path: str) -> None:
    document = REPOSITORY / path
    pictures = [
        document.parent / name for name in re.findall(r"!\[[^]]+\]\(([^)]+\.svg)\)", document.read_text("utf-8"))
    ]
    assert pictures
    assert [picture for picture in pictures if not 0 < size(picture) < 150_000] == []


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_the_palette_finds_the_screenshot_command_by_either_word() -> None:
    command = next(command for command in COMMANDS if command.id == "app.screenshot")
    assert "picture" in command.help and "Screenshot" in command.title

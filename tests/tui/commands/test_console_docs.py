"""What is written about the console's keys and pictures is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgym_tui.commands.keymap import COMMANDS, display_keys
from tests.support.command import REPOSITORY

NAMED = {shown: key for c in COMMANDS for key, shown in zip(c.keys.split(","), display_keys(c.keys), strict=True)}
KEYS = {key for command in COMMANDS for key in command.keys.split(",")} | {":", "tab"}
LONG = {"enter", "escape", "space", "tab"}


@pytest.mark.parametrize("path", ["README.md", "docs/console.md"])
def test_every_key_that_is_named_does_something(path: str) -> None:
    named = re.findall(r"`([^`\s]+)`", (REPOSITORY / path).read_text("utf-8"))
    keys = [key for key in named if len(key) == 1 or key in LONG or key.startswith("ctrl+")]
    assert len(keys) > 20
    assert [key for key in keys if NAMED.get(key, key) not in KEYS and key not in "␛⚠▲▼✗≈↷"] == []


@pytest.mark.parametrize("path", ["README.md", "docs/console.md"])
def test_every_picture_is_there_and_small(path: str) -> None:
    document = REPOSITORY / path
    pictures = [
        document.parent / name for name in re.findall(r"!\[[^]]+\]\(([^)]+\.svg)\)", document.read_text("utf-8"))
    ]
    assert pictures
    assert [picture for picture in pictures if not 0 < size(picture) < 150_000] == []


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_the_palette_finds_a_picture_by_either_of_its_words() -> None:
    command = next(command for command in COMMANDS if command.id == "app.screenshot")
    assert "picture" in command.help and "Screenshot" in command.title

"""The way to the terminal: everything printed here is made safe first and never read as markup."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from runner.text import mask, sanitize

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Columns of a table when nobody says how wide the output is."""


@cache
def console(*, stderr: bool = False) -> Console:
    """The console of a stream, with markup, emoji codes and highlighting off."""
    from rich.console import Console

    tty = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=None if tty else PIPE_WIDTH)


def err(text: str) -> None:
    """Say something to the person, beside the output."""
    console(stderr=True).print(safe(text), soft_wrap=True)


def safe(text: str) -> str:
    """A text of any origin for a terminal: no secrets, no control characters."""
    return sanitize(mask(text))


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")

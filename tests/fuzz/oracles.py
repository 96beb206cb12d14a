"""Checks that several fuzz targets share: what a terminal, a log or a reply may contain."""

from __future__ import annotations

import asyncio
import atexit
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from tests.support.escapes import foreign_characters, mark_stacks

SECRET: Final = "s3cr3t-Value"
"""Value of a secret variable of this process, which no text may show."""

_T = TypeVar("_T")


@contextmanager
def secret_environment() -> Iterator[None]:
    """Set a secret variable, whose value messages must mask."""
    os.environ["FUZZ_API_KEY"] = SECRET
    try:
        yield
    finally:
        del os.environ["FUZZ_API_KEY"]


def check_displayable(text: str, *, lines: bool = False) -> None:
    """Check that a text is safe in a terminal; ``lines``: it may have line breaks and tabs."""
    if text.isascii() and text.isprintable():
        return
    shown = text.replace("\n", "").replace("\t", "") if lines else text
    assert foreign_characters(shown) == [], ascii(text)
    assert mark_stacks(text) == [], ascii(text)


def check_masked(text: str, *secrets: str) -> None:
    """Check that a text contains no secret."""
    for secret in (SECRET, *secrets):
        assert secret not in text, ascii(text)


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that all inputs of this process share; a new one for each would take most of the time."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def scratch_folder(name: str) -> Path:
    """Return a folder that the end of this process removes."""
    folder = tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def outcome(operation: Callable[[], _T], *errors: type[Exception]) -> _T | Exception:
    """Return the result of an operation, or the exception it raises; only ``errors`` may be raised."""
    try:
        return operation()
    except errors as exc:
        return exc


def same_outcome(first: object, second: object) -> bool:
    """Return whether two results of ``outcome`` are equal."""
    if isinstance(first, Exception) or isinstance(second, Exception):
        return type(first) is type(second) and str(first) == str(second)
    return first == second


def split_head(data: bytes) -> tuple[list[str], bytes]:
    """Split an input into the lines before its first empty line, and the bytes after it."""
    head, _, body = data.partition(b"\n\n")
    return head.decode("utf-8", "replace").split("\n"), body

"""Shows a text in the user's pager or editor, which gets the terminal until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from agentgym_tui.textual_compat import driver_of

if TYPE_CHECKING:
    from textual.app import App

Program: TypeAlias = Literal["pager", "editor"]

_VARIABLES: Final[Mapping[Program, Sequence[str]]] = {"pager": ("PAGER",), "editor": ("VISUAL", "EDITOR")}
_DEFAULTS: Final[Mapping[Program, Sequence[str]]] = {"pager": ("less", "more"), "editor": ("vi", "nano")}
END_TIMEOUT_S: Final = 2.0
"""Seconds in which a program has to end when the console ends."""


class ProgramError(Exception):
    """A program could not be started. The message names the reason and may contain untrusted text."""


def program_command(program: Program, environ: Mapping[str, str]) -> list[str]:
    """Return the user's pager or editor with its arguments, split as a shell would; no shell runs it.

    Raises:
        ProgramError: the variable is not a valid command, or names a program that is not installed.
    """
    name = next((name for name in _VARIABLES[program] if environ.get(name, "").strip()), "")
    if not name:
        installed = [each for each in _DEFAULTS[program] if shutil.which(each)]
        if not installed:
            variable = _VARIABLES[program][-1]
            raise ProgramError(f"no {program} is installed; set {variable} to the command of one")
        return installed[:1]
    text = environ[name]
    try:
        command = shlex.split(text)
    except ValueError as exc:
        raise ProgramError(f"{name}={text[:100]!r} is not a valid command: {exc}") from exc
    if not command or shutil.which(command[0]) is None:
        raise ProgramError(f"{name}={text[:100]!r} names no installed program; correct the variable")
    return command


async def show_in_program(app: App[Any], command: Sequence[str], name: str, text: str) -> bool:
    """Show a copy of a text, which only the user can read, and remove it when the program ends.

    The console goes on receiving messages meanwhile and draws nothing.

    Args:
        app: the console.
        command: the program with its arguments.
        name: file name of the copy.
        text: the text.

    Returns:
        Whether the program changed the copy.

    Raises:
        ProgramError: there is no terminal, or the program cannot be started or ends with an error.
    """
    if (driver := driver_of(app)) is None or not driver.can_suspend:
        raise ProgramError(f"{command[0]} needs a terminal; the console runs without one, for example in a browser")
    content = text.encode("utf-8", "replace")
    with tempfile.TemporaryDirectory(prefix="agentgym-") as folder:
        path = Path(folder) / name
        await asyncio.to_thread(_write_private, path, content)
        failure = ""
        with app.suspend(), _interrupts_ignored():  # an exception in this block would leave the console suspended
            try:
                code = await _run([*command, str(path)])
                failure = f"{command[0]} ended with code {code}" if code else ""
            except OSError as exc:
                failure = f"{command[0]} cannot be started: {exc.strerror}"
        if failure:
            raise ProgramError(failure)
        return await asyncio.to_thread(_is_changed, path, content)


async def _run(command: Sequence[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # the console ends
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_TIMEOUT_S)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore ctrl+c, which the terminal sends to the program and to the console."""
    previous = signal.signal(signal.SIGINT, lambda number, frame: None)  # SIG_IGN would be inherited by the program
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)


def _is_changed(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() != content
    except OSError:
        return True

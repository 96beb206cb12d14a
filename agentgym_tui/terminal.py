"""The console in its terminal, which is restored however the console ends: signals, crash reports, pager and editor."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import logging
import os
import platform
import select
import shutil
import signal
import sys
import tempfile
import termios
import threading
import traceback
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rich.cells import split_graphemes
from textual.worker import WorkerFailed

from agentgym_tui.safe_text import sanitize_lines, sanitize_text
from agentgym_tui.textual_compat import TerminalDriver, crash_of, driver_of
from runner import __version__
from runner.errors import catch_foreign

if TYPE_CHECKING:
    from types import FrameType

    from textual.app import App

    from agentgym_tui.sessions.session import Session

Program: TypeAlias = Literal["pager", "editor"]

MIN_SIZE: Final = (60, 20)
SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
EXIT_TIMEOUT_S, HANGUP_TIMEOUT_S = 3.0, 1.5
"""Seconds between a signal, or the end of the terminal, and the forced exit of the process."""
RESTORE_MODES: Final = (
    "\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"
)
"""Resets the modes set by Textual: keyboard, mouse, paste, focus, wrapping, alternate screen, cursor, colors."""


# Start and end.


def unsupported_reason(environ: Mapping[str, str]) -> str | None:
    """Return why the console cannot be shown in this terminal; None if it can, or if no terminal is needed."""
    if environ.get("TEXTUAL_DRIVER"):
        return None
    if not all(os.isatty(number) for number in (0, 1, 2)):
        return "the console needs a terminal; for pipes use agentgym-runner watch --json"
    if environ.get("TERM", "") in ("", "dumb", "unknown"):
        return "unsupported terminal (TERM is unset or dumb); set TERM, for example to xterm-256color"
    (columns, lines), (least, least_lines) = os.get_terminal_size(0), MIN_SIZE
    too_small = f"the terminal has {columns}x{lines} characters; enlarge it to at least {least}x{least_lines}"
    return too_small if columns < least or lines < least_lines else None


def run_console(app: App[Any], session: Session) -> int:
    """Run the console and return its exit code. If it crashes, no untrusted text is printed."""
    replace_unknown_characters()
    logging.getLogger().addHandler(logging.NullHandler())  # otherwise library warnings would be printed at exit
    silenced = io.StringIO()
    app.error_console.file = silenced
    attributes = termios.tcgetattr(0) if _is_terminal_open() else []
    if not os.environ.get("TEXTUAL_DRIVER"):  # else a program such as textual-serve draws the console
        app.driver_class = TerminalDriver
        threading.Thread(target=_end_with_terminal, daemon=True).start()
    crashes: list[BaseException] = []
    with catch_foreign(crashes.append):
        asyncio.run(_run_app(app, attributes))
    if not crashes and (crash := crash_of(app)) is not None:
        # a failed worker does not link to the original error
        crashes.append(crash.error if isinstance(crash, WorkerFailed) else crash)
    if crashes or silenced.getvalue():
        _restore_terminal(attributes)
        path = write_report(crashes[0] if crashes else None, session)
        sys.stderr.write(f"agentgym-tui: the console crashed; episodes are not affected; report: {path}\n")
        return 1
    return app.return_code or 0


async def _run_app(app: App[Any], attributes: list[Any]) -> None:
    loop = asyncio.get_running_loop()

    def leave(number: int, _: FrameType | None) -> None:
        # a plain signal handler runs even while the event loop is blocked by a write to the terminal
        limit_s = EXIT_TIMEOUT_S
        if number == signal.SIGHUP and not _is_terminal_open():
            limit_s = HANGUP_TIMEOUT_S
            _detach()
        forced = threading.Timer(limit_s, _exit_after_signal, (number, attributes))
        forced.daemon = True
        forced.start()
        loop.call_soon_threadsafe(partial(app.exit, return_code=128 + number))

    for number in SIGNALS:
        signal.signal(number, leave)
    await app.run_async()


def _end_with_terminal() -> None:
    """Wait for the end of the terminal and end the console: the kernel signals only the leader of the session."""
    terminal = select.poll()
    terminal.register(0, 0)  # a hang-up is always reported
    if any(event & select.POLLHUP for _, event in terminal.poll()):
        os.kill(os.getpid(), signal.SIGHUP)


def _detach() -> None:
    """Replace the terminal that hung up, whose input would be readable and whose output would fail for ever."""
    signal.signal(signal.SIGCONT, signal.SIG_IGN)  # sent with a hang-up; Textual would resume
    silent, _ = os.pipe()  # the other end stays open
    os.set_blocking(silent, False)  # the input thread may be about to read
    null = os.open(os.devnull, os.O_WRONLY)
    for source, number in ((silent, 0), (null, 1), (null, 2)):
        os.dup2(source, number)


def _exit_after_signal(number: int, attributes: list[Any]) -> None:
    """Restore the terminal and exit, even if the terminal does not respond."""
    restoring = threading.Thread(target=_restore_terminal, args=(attributes,), daemon=True)  # writing may block
    restoring.start()
    restoring.join(1.0)
    os._exit(128 + number)


def _is_terminal_open() -> bool:
    try:
        termios.tcgetattr(0)
    except termios.error:
        return False
    return True


def _restore_terminal(attributes: list[Any]) -> None:
    """Restore modes and attributes of the terminal in case Textual could not; calling this twice is harmless."""
    if _is_terminal_open():
        os.write(2, RESTORE_MODES.encode())
        termios.tcsetattr(0, termios.TCSADRAIN, attributes)


# Crash reports: where the error was and how much the session holds, without any untrusted text.

LIBRARIES: Final = ("textual", "rich", "msgspec", "nats-py")
MAX_FRAMES: Final = 60
MAX_CHAIN_DEPTH: Final = 8


def write_report(error: BaseException | None, session: Session) -> Path | str:
    """Write a crash report with mode 0600; return its path, or a message if no file could be written."""
    text = "\n".join(sanitize_lines("\n".join(_report_lines(error, session))).lines) + "\n"
    logs = [] if session.data_dir is None else [str(session.data_dir / "logs")]
    for folder in (*logs, tempfile.gettempdir()):
        try:
            descriptor, name = tempfile.mkstemp(prefix="agentgym-tui-crash-", suffix=".txt", dir=folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except (OSError, ValueError):  # ValueError: the folder name contains a null byte
            continue
        return Path(name)
    return "no report could be written"


def _report_lines(error: BaseException | None, session: Session) -> Iterator[str]:
    store = session.store
    yield f"agentgym-tui {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    yield f"TERM {os.environ.get('TERM', '')[:40]}, size {_size_text()}"
    yield f"{len(store.nodes)} nodes, {len(store.batches)} batches, {len(store.episodes)} episodes"
    yield f"link {store.link.status}, {type(session).__name__}"
    yield ""
    if error is None:
        yield "Textual ended without an error, for example because terminal input could not be read"
    else:
        yield from _stack_lines(error, MAX_CHAIN_DEPTH)


def _stack_lines(error: BaseException, depth: int) -> Iterator[str]:
    """Yield types and stack frames of an error and its causes; no messages, which may contain anything."""
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    frames = traceback.extract_tb(error.__traceback__, limit=-MAX_FRAMES)
    yield from (f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    if depth == 0:
        return
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield "in group:"
            yield from _stack_lines(inner, depth - 1)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield "caused by:"
        yield from _stack_lines(cause, depth - 1)


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow, and needed only here

    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _size_text() -> str:
    try:
        return "x".join(map(str, os.get_terminal_size(2)))
    except OSError:
        return "unknown"


# A pager or editor, which gets the terminal until it ends.

_VARIABLES: Final[Mapping[Program, Sequence[str]]] = {"pager": ("PAGER",), "editor": ("VISUAL", "EDITOR")}
_DEFAULTS: Final[Mapping[Program, Sequence[str]]] = {"pager": ("less", "more"), "editor": ("vi", "nano")}
END_TIMEOUT_S: Final = 2.0
"""Seconds in which a program has to end when the console ends."""


class ProgramError(Exception):
    """A program could not be started. The message names the reason and may contain untrusted text."""


def program_command(program: Program, environ: Mapping[str, str]) -> list[str]:
    """Return the user's pager or editor with its arguments, split as a shell would; or raise ``ProgramError``."""
    name = next((name for name in _VARIABLES[program] if environ.get(name, "").strip()), "")
    if not name:
        if found := next(filter(shutil.which, _DEFAULTS[program]), ""):
            return [found]
        raise ProgramError(f"no {program} is installed; set {_VARIABLES[program][-1]} to the command of one")
    import shlex

    text = environ[name]
    try:
        command = shlex.split(text)
    except ValueError as exc:
        raise ProgramError(f"{name}={text[:100]!r} is not a valid command: {exc}") from exc
    if not command or shutil.which(command[0]) is None:
        raise ProgramError(f"{name}={text[:100]!r} names no installed program; correct the variable")
    return command


def suspend(app: App[Any]) -> str:
    """Stop the processes of this terminal's job, and return "", or the reason why they cannot be stopped."""
    if (driver := driver_of(app)) is None or not driver.can_suspend:
        return "only a console in a terminal can be suspended"
    if os.getpgrp() == os.getsid(0):
        return "no shell has started the console, so none could go on with it"
    driver.suspend_application_mode()  # first: the shell takes the terminal as soon as make has stopped
    os.kill(0, signal.SIGSTOP)  # not only this process: the shell waits for the first one, such as make
    return ""


async def show_in_program(app: App[Any], command: Sequence[str], name: str, text: str) -> bool:
    """Show a private, safe copy of a text named ``name`` until the program ends; return whether it changed the copy.

    The console goes on receiving messages meanwhile and draws nothing. Raises ``ProgramError`` if there is no terminal,
    or the program cannot be started or ends with an error.
    """
    if (driver := driver_of(app)) is None or not driver.can_suspend:
        raise ProgramError(f"{command[0]} needs a terminal; the console runs without one, for example in a browser")
    content = await asyncio.to_thread(safe_copy, text)
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


def safe_copy(text: str) -> bytes:
    """Return what a pager or editor gets of a text, as both may pass control characters to the terminal."""
    return sanitize_text(text).encode("utf-8", "replace")


async def _run(command: Sequence[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # the console ends
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_TIMEOUT_S)


@contextlib.contextmanager
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


# What the terminal gets in a locale whose encoding has not all characters: others of the same width.

_HANDLER: Final = "agentgym-same-width"

# fmt: off
_SIMILAR: Final = {
    "·": ".", "…": ".", "‖": "|", "―": "-", "\u2013": "-", "—": "-", "•": "*", "°": "o", "µ": "u", "\xd7": "x",
    "✗": "x", "✓": "v", "⚠": "!", "●": "*", "○": "o", "◐": "o", "◔": "o", "◆": "*", "■": "#", "✎": "*", "⚑": "!",
    "▶": ">", "▸": ">", "▹": ">", "◂": "<", "◀": "<", "▼": "v", "▾": "v", "▲": "^", "▴": "^",
    "→": ">", "←": "<", "↓": "v", "↑": "^", "≈": "~", "≠": "!", "≡": "=", "≤": "<", "≥": ">",
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "░": ":", "▒": ":", "▔": "-",
}
# fmt: on
_BOX: Final = range(0x2500, 0x2580)
_BLOCKS: Final = range(0x2580, 0x2596)
_HORIZONTAL, _VERTICAL = frozenset("─━┄┅┈┉╌╍═╴╶╸╺╼╾"), frozenset("│┃┆┇┊┋╎╏║╵╷╹╻╽╿")


def replace_unknown_characters() -> None:
    """Let standard error replace what it does not have by as many columns; its own handler would shift them."""
    codecs.register_error(_HANDLER, _replacement)
    if isinstance(sys.__stderr__, io.TextIOWrapper):
        sys.__stderr__.reconfigure(errors=_HANDLER)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_similar(text[start], width) for start, _, width in split_graphemes(text)[0]), error.end


def _similar(first: str, width: int) -> str:
    """Return ASCII of ``width`` columns for a character."""
    if (found := _SIMILAR.get(first)) is None:
        found = _drawn(first) or unicodedata.normalize("NFKD", first).encode("ascii", "ignore").decode()
    return found if len(found) == width else "?" * width


def _drawn(character: str) -> str:
    if ord(character) in _BLOCKS:
        return "#"
    if ord(character) not in _BOX:
        return ""
    return "-" if character in _HORIZONTAL else "|" if character in _VERTICAL else "+"

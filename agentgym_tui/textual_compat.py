"""The only module that uses private attributes of Textual; each docstring gives the reason.

``pyproject.toml`` excludes the next minor version of Textual, and each function and class here has a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TextIO, cast

from textual.app import App, ReturnType
from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen, ScreenResultType
from textual.timer import Timer


class OrderedKeysApp(App[ReturnType], inherit_bindings=False):
    """Runs a screen's binding before the next key; Textual first lets every ancestor of the focus see the key."""

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        if await super()._check_bindings(key, priority):
            return True
        typing = self.focused is not None and self.focused.check_consume_key("a", "a")
        return priority and not typing and await super()._check_bindings(key)


class TerminalDriver(LinuxDriver):
    """Textual's driver for terminals that disappear, resume, or send invalid UTF-8, where it would stop or hang."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Textual's arguments
        super().__init__(*args, **kwargs)
        self._file = cast("Any", _TolerantFile(cast("TextIO", self._file)))  # it always takes standard error
        self._is_active = self._is_suspended = self._is_lent = False
        # registered with the event loop, which it wakes; a plain signal handler could be delayed until the next event
        asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._resume)

    def start_application_mode(self) -> None:
        self._is_active, self._is_suspended = True, False
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def suspend_application_mode(self) -> None:
        self._is_suspended = True
        super().suspend_application_mode()

    @contextlib.contextmanager
    def no_automatic_restart(self) -> Iterator[None]:
        self._is_lent = True
        try:
            with super().no_automatic_restart():
                yield
        finally:
            self._is_lent = False

    def write(self, data: str) -> None:
        if not self._is_lent:
            super().write(data)

    def close(self) -> None:
        self._is_active = False
        super().close()

    def run_input_thread(self) -> None:
        while not self.exit_event.is_set():
            try:
                super().run_input_thread()
            except (UnicodeDecodeError, BlockingIOError):
                continue
            except OSError:  # the terminal has ended
                os.kill(os.getpid(), signal.SIGHUP)
                self.exit_event.wait()

    def _resume(self) -> None:
        """Leave and enter application mode after SIGCONT: another program may have changed the terminal.

        A background process must not touch the terminal: it stops itself until it is in the foreground.
        """
        if self._is_lent:
            return  # the other program was stopped, too, and goes on
        if not self._is_in_foreground():
            os.kill(os.getpid(), signal.SIGSTOP)
            return  # called again by the next SIGCONT
        if self._is_active:
            self.suspend_application_mode()
        if self._is_suspended:
            self.resume_application_mode()
            self._app.call_later(partial(self._app.refresh, layout=True))  # the screen was cleared

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:  # no job control in this terminal
            return True


class _TolerantFile:
    """A file that ignores the write errors of a closed terminal, so that Textual's writer thread continues."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def add_bindings(node: DOMNode, bindings: Iterable[Binding]) -> Callable[[], None]:
    """Bind keys on one app or screen, in place of those of its class; return a function that undoes it."""
    before = node._bindings.copy()
    node._bindings.key_to_bindings.update(BindingsMap(bindings).key_to_bindings)
    return partial(setattr, node, "_bindings", before)


def binding_ids(node: DOMNode) -> list[str]:
    """Return the ids of all bindings of an app, screen or widget, inherited ones first."""
    return list(dict.fromkeys(binding.id for _, binding in node._bindings if binding.id is not None))


def bindings_of_key(node: DOMNode, key: str) -> Sequence[Binding]:
    """Return the bindings of a key on one node, by the user's keymap; Textual has only those of the whole screen."""
    bindings = node._bindings.copy()
    bindings.apply_keymap(node.app._keymap)
    return bindings.key_to_bindings.get(key, ())


def start_in_mode(app: App[Any], mode: str) -> None:
    """Make ``mode`` the app's first mode; called before ``App.__init__``, which reads the class attribute."""
    vars(app)["DEFAULT_MODE"] = mode


def with_known_styles(app: App[Any], screen: Screen[ScreenResultType]) -> Screen[ScreenResultType]:
    """Mark a screen without styles of its own; for a new screen of a mode Textual parses all styles again, twice."""
    screen._css_update_count = app._css_update_count
    return screen


def never_skip(timer: Timer) -> Timer:
    """Make a timer run even if it is late: Textual skips a timer whose time has passed at the first check."""
    timer._skip = False
    return timer


def driver_of(app: App[Any]) -> Driver | None:
    """Return the driver of a running app, to write escape sequences that Textual does not know; None without one."""
    return app._driver


def crash_of(app: App[Any]) -> Exception | None:
    """Return the exception that ended an app; Textual's public API prints a traceback with variables instead."""
    return app._exception

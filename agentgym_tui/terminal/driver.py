"""Textual's terminal driver, extended for terminals that disappear, resume, or send invalid UTF-8."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any, TextIO

from agentgym_tui.terminal.alternate_screen import ENTER_ALTERNATE_SCREEN
from agentgym_tui.textual_compat import OwnOutputDriver


class TerminalDriver(OwnOutputDriver):
    """A driver that handles closed terminals, resumed processes and invalid UTF-8.

    In these cases Textual's own driver would stop reading input, or wait forever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Textual's arguments
        super().__init__(*args, **kwargs)
        self._is_active = self._is_suspended = self._is_lent = False
        # registered with the event loop, which it wakes; a plain signal handler could be delayed until the next event
        asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._resume)

    def wrap_output(self, file: TextIO) -> object:
        return _TolerantFile(file)

    def start_application_mode(self) -> None:
        self._is_active, self._is_suspended = True, False
        super().start_application_mode()

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

    def _resume(self) -> None:
        """Enter application mode again after the signal SIGCONT, because another program may have changed the terminal.

        Application mode is left first; otherwise two threads would read the terminal. A background process must not
        touch the terminal: it stops itself until it is in the foreground.
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
            self.driven_app.call_later(partial(self.driven_app.refresh, layout=True))  # the screen was cleared

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:  # no job control in this terminal
            return True

    def end_of_input(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    def run_input_thread(self) -> None:
        while not self.exit_event.is_set():
            try:
                super().run_input_thread()
            except UnicodeDecodeError:
                continue


class PreparedTerminalDriver(TerminalDriver):
    """A driver for a terminal that already shows its alternate screen.

    Some terminals would clear the screen if the alternate screen were entered twice.
    """

    _is_first_write = True

    def write(self, data: str) -> None:
        if self._is_first_write and data == ENTER_ALTERNATE_SCREEN:
            self._is_first_write = False
        else:
            super().write(data)


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

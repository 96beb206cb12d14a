"""The framework's terminal driver, for terminals that go away, come back, or send what is no text."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from typing import Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

from agentgym_tui.terminal.alternate_screen import ENTER_ALTERNATE_SCREEN


class TerminalDriver(LinuxDriver):
    """Goes on where the framework's own one would stop reading, or wait for ever for a terminal that is gone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the framework's own arguments
        super().__init__(*args, **kwargs)
        self._file = cast(Any, _TolerantFile(cast(TextIO, self._file)))
        self._here = self._away = False
        # by the loop, which it wakes: a handler of the process may be called only when something else happens
        asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._go_on)

    def start_application_mode(self) -> None:
        """Take the terminal."""
        self._here, self._away = True, False
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def suspend_application_mode(self) -> None:
        """Give it back for a while."""
        self._away = True
        super().suspend_application_mode()

    def close(self) -> None:
        """Give it back."""
        self._here = False
        super().close()

    def _go_on(self) -> None:
        """Take it anew: somebody may have used it. Without giving it back it would be read twice, and stay as it is.

        In the background it is somebody else's, and to touch it would stop the process in the midst of this: it stops
        here, until it goes on in front.
        """
        if not self._in_front():
            os.kill(os.getpid(), signal.SIGSTOP)
            return  # it is called again
        if self._here:
            self.suspend_application_mode()
        if self._away:
            self.resume_application_mode()
            self._app.call_later(partial(self._app.refresh, layout=True))  # the terminal is empty now

    def _in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:  # there are no jobs in this terminal
            return True

    def run_input_thread(self) -> None:
        """Read until the end; bytes that are no UTF-8 are lost, together with what was read along with them."""
        while not self.exit_event.is_set():
            try:
                super().run_input_thread()
            except UnicodeDecodeError:
                continue


class PreparedTerminalDriver(TerminalDriver):
    """For a terminal that was taken before: taken once more some would be empty until the first paint."""

    _first = True

    def write(self, data: str) -> None:
        """All but the first request for the screen that is there."""
        if self._first and data == ENTER_ALTERNATE_SCREEN:
            self._first = False
        else:
            super().write(data)


class _TolerantFile:
    """Takes what is written also when there is no terminal any more: the thread that writes has to go on."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            return

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            return

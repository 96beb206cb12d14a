"""Ends a run on Ctrl-C or SIGTERM, and exits even if threads of an environment never end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from runner.cli.terminal import print_stderr

if TYPE_CHECKING:
    from runner.batch.batch import Batch

INTERRUPTED = 130

THREAD_EXIT_TIMEOUT_S = 1.0
"""Seconds that threads have to end after the run is complete."""
MESSAGE_TIMEOUT_S = 1.0
"""Maximum seconds that the end of a run waits for a blocked terminal to print a message."""


class SignalHandler:
    """Handles SIGINT and SIGTERM: the first signal ends the run after the current steps, the second immediately.

    Before the first batch, even the first signal ends the run immediately, because there is nothing to store.
    """

    def __init__(self, message_timeout_s: float = MESSAGE_TIMEOUT_S) -> None:
        self._message_timeout_s = message_timeout_s
        self._n_received = 0
        self._batch: Batch | None = None
        self._batch_started = False
        self._message_thread: threading.Thread | None = None

    @property
    def received(self) -> bool:
        return self._n_received > 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals in the ``with`` block; at its end, wait until the signal message is printed."""
        try:
            with _signal_handler(signal.SIGINT, self._receive), _signal_handler(signal.SIGTERM, self._receive):
                yield
        finally:
            if self._message_thread is not None:
                self._message_thread.join(self._message_timeout_s)

    @contextmanager
    def forwarding_to(self, batch: Batch) -> Iterator[None]:
        """Forward signals to a batch in the ``with`` block, including a signal that was received earlier."""
        self._batch, self._batch_started = batch, True
        if self._n_received:
            batch.command("cancel")
        try:
            yield
        finally:
            self._batch = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._n_received += 1
        is_repeated = self._n_received > 1
        if self._batch is not None:
            self._batch.command("abort" if is_repeated else "cancel")
        elif is_repeated or not self._batch_started:
            raise KeyboardInterrupt
        if not is_repeated:
            # On a separate thread: the interrupted thread may hold the lock of the stream.
            text = "Stopping after the current steps; press Ctrl-C again to stop immediately."
            self._message_thread = threading.Thread(
                target=print_stderr, args=(text,), name="signal message", daemon=True
            )
            self._message_thread.start()


@contextmanager
def _signal_handler(number: signal.Signals, handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, previous)


def exit_despite_stuck_threads(code: int) -> None:
    """Exit the process with this code if threads still run after ``THREAD_EXIT_TIMEOUT_S`` seconds; else return.

    At its normal exit, the interpreter would wait for executor threads that an environment keeps busy, and it would
    crash if an abandoned worker prints at that moment.
    """
    deadline = time.monotonic() + THREAD_EXIT_TIMEOUT_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and (not thread.daemon or thread.name.startswith("slot ")):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                import logging

                logging.shutdown()
                with suppress(OSError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)

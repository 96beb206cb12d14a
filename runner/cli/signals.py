"""How a run ends: by itself, by Ctrl-C, or with threads of an environment that do not come back."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from runner.cli.terminal import err

if TYPE_CHECKING:
    from runner.batch.batch import Batch

INTERRUPTED = 130

STUCK_AFTER_S = 1.0
"""Seconds that threads have to end by themselves once everything is done."""

SAID_AFTER_S = 1.0
"""Seconds that a terminal has to take what is said; one that takes nothing keeps no run from ending."""


class Interrupts:
    """Ctrl-C and SIGTERM during a run: the first ends it after the running steps, the second at once.

    Before the first batch the first one ends it at once, as there is nothing yet to be kept.
    """

    def __init__(self) -> None:
        """Nothing was received yet."""
        self._n_received = 0
        self._batch: Batch | None = None
        self._played = False
        self._saying: threading.Thread | None = None

    @property
    def any(self) -> bool:
        """Whether one was received."""
        return self._n_received > 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Receive the signals while the block runs; what is to be said of them is said by its end."""
        try:
            with _handler(signal.SIGINT, self._receive), _handler(signal.SIGTERM, self._receive):
                yield
        finally:
            if self._saying is not None:
                self._saying.join(SAID_AFTER_S)

    @contextmanager
    def ending(self, batch: Batch) -> Iterator[None]:
        """Pass them on to a batch while the block runs; one that came just before it counts."""
        self._batch, self._played = batch, True
        if self._n_received:
            batch.command("cancel")
        try:
            yield
        finally:
            self._batch = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._n_received += 1
        again = self._n_received > 1
        if self._batch is not None:
            self._batch.command("abort" if again else "cancel")
        elif again or not self._played:
            raise KeyboardInterrupt
        if not again:
            # On a thread of its own: the one that was interrupted may be about to print and hold the stream.
            text = "Stopping after the running steps; Ctrl-C again gives them up."
            self._saying = threading.Thread(target=err, args=(text,), name="saying", daemon=True)
            self._saying.start()


@contextmanager
def _handler(number: signal.Signals, handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


def leave_stuck_threads(code: int) -> None:
    """End the process with ``code`` now if it could not end by itself; else return.

    The interpreter would wait for the threads of an executor for as long as an environment keeps them busy, and it
    fails when a slot that was given up prints just then.
    """
    deadline = time.monotonic() + STUCK_AFTER_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and (not thread.daemon or thread.name.startswith("slot ")):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logging.shutdown()
                with suppress(OSError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)

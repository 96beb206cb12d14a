"""One vocabulary of errors, named by the boundary they come from, and the one place that catches everything."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RunnerError(Exception):
    """Base of all errors of ours: says what was asked, what came back, and what to do next."""


class ConfigError(RunnerError):
    """A profile, option or name that cannot be used."""


class EnvironmentFault(RunnerError):
    """An environment that broke its contract or could not be reached."""


class AgentFault(RunnerError):
    """An agent that broke its contract."""


class InferenceFault(RunnerError):
    """No model answered, or one refused what it was asked."""


class OracleDiverged(RunnerError):
    """The oracle's local twin saw something else than the environment did."""


class StoreError(RunnerError):
    """A file of the state directory that cannot be read or written."""


@contextmanager
def boundary(on_error: Callable[[BaseException], None]) -> Iterator[None]:
    """Hand whatever foreign code raises to ``on_error``; cancellation and Ctrl-C pass through.

    This is the only broad ``except`` of the project: environments, agents and observers are other people's code, and
    neither a ``sys.exit`` nor an exception of their own making may end the process or a slot.
    """
    try:
        yield
    except BaseException as exc:
        if _passes(exc):
            raise
        on_error(exc)


def _passes(exc: BaseException) -> bool:
    """Whether ``exc`` ends this code rather than tells of a failure; Ctrl-C reaches the main thread alone."""
    if isinstance(exc, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    from asyncio import CancelledError  # only where something was raised: commands that need no loop start faster

    return isinstance(exc, CancelledError | GeneratorExit)


def log_failure(logger: logging.Logger, what: str) -> Callable[[BaseException], None]:
    """An ``on_error`` that only logs, for work whose failure must not change a result."""

    def report(exc: BaseException) -> None:
        logger.warning("%s failed: %s: %s", what, type(exc).__name__, exc)

    return report

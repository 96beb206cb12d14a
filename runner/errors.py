"""Error classes of the runner, and ``catch_foreign``, which handles the exceptions of third-party code.

A class that is renamed after a release keeps its old ``error.type`` in the class attribute ``published_error_type``;
see ``runner.tracing.tracer``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from types import TracebackType


class RunnerError(Exception):
    """Base class of the runner's errors; the message describes the attempt, the failure, and the user's next step."""


class ConfigError(RunnerError):
    pass


class ServerBusy(ConfigError):
    """The server of an environment, at the address ``server``, accepts connections but does not reply in time."""

    def __init__(self, message: str, server: str, wait_s: float) -> None:
        super().__init__(message)
        self.server = server
        self.wait_s = wait_s


class EnvironmentFault(RunnerError):
    """An environment violated the ``Environment`` protocol or could not be reached."""


class ServerGone(EnvironmentFault):
    """The server of an environment refused or dropped the connection, or did not reply in time.

    ``timed_out``: the connection stayed open without a complete reply.
    """

    published_error_type = "environment_fault"

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class EvaluationFault(EnvironmentFault):
    """The judge of an episode failed, so the episode has no verdict; the agent did not fail."""

    published_error_type = "evaluation"


class AgentFault(RunnerError):
    """An agent violated the ``Agent`` protocol."""


class InferenceFault(RunnerError):
    """No model answered, or a model rejected the request."""


class ContextExceeded(InferenceFault):
    """The chat is too long for an endpoint."""

    def __init__(self, text: str, context_tokens: int, warnings: tuple[str, ...]) -> None:
        super().__init__(text)
        self.context_tokens, self.warnings = context_tokens, warnings


class OracleDiverged(RunnerError):
    """The oracle's local copy of the environment returned a different observation than the environment itself."""


class StoreError(RunnerError):
    """A file of the state directory cannot be read or written."""


class catch_foreign:
    """Pass an exception that leaves the ``with`` block to ``on_error``; cancellation and Ctrl-C propagate.

    The ``with`` block then ends normally. Nothing else in the project catches every exception. Environments, agents and
    observers are third-party code: neither ``sys.exit`` nor an arbitrary exception in them may end the process or an
    episode worker.
    """

    __slots__ = ("_on_error",)

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        if exc is None or _must_propagate(exc):
            return False
        self._on_error(exc)
        return True


def _must_propagate(exc: BaseException) -> bool:
    if isinstance(exc, KeyboardInterrupt):  # Ctrl-C is raised only in the main thread
        return threading.current_thread() is threading.main_thread()
    if "asyncio" in sys.modules:  # not imported here: a command without an event loop starts faster
        from asyncio import CancelledError

        if isinstance(exc, CancelledError):
            return True
    return isinstance(exc, GeneratorExit)


def log_failure(logger: logging.Logger, operation: str) -> Callable[[BaseException], None]:
    """Return an ``on_error`` callback that only logs, for an operation whose failure must not change a result."""

    def log(exc: BaseException) -> None:
        logger.warning("%s failed: %s: %s", operation, type(exc).__name__, exc)

    return log

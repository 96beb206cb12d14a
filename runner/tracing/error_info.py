"""Exceptions as data, whatever an exception does when it is looked at."""

from __future__ import annotations

import re
import traceback

from runner.errors import RunnerError, boundary
from runner.types import ErrorInfo
from runner.util.safe_values import cut_text, encodable, shown
from runner.util.text import mask

MAX_ERROR_BYTES = 16 * 1024
"""A message keeps its beginning and a traceback its end, each within this many bytes."""

_MAX_FRAMES = 100
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def create_error_info(exc: BaseException) -> ErrorInfo:
    """Describe an exception; never raises itself, and masks secrets.

    ``type`` is the class name, or for our own errors their kind, e.g. ``oracle_diverged``. What hydra wraps an
    exception in is taken off: what the environment or agent raised says more.
    """
    exc = _unwrapped(exc)
    message = mask(shown(exc, f"<{type(exc).__name__} without a readable message>"))
    return ErrorInfo(
        type=_kind(type(exc)),
        message=cut_text(message, MAX_ERROR_BYTES),
        traceback=cut_text(mask(_traceback_text(exc)), MAX_ERROR_BYTES, keep_end=True),
    )


def _unwrapped(exc: BaseException) -> BaseException:
    """The exception inside hydra's wrapper, told by its name: hydra may not even be imported."""
    kind = type(exc)
    if kind.__name__ == "InstantiationException" and kind.__module__.startswith("hydra.") and exc.__cause__:
        return exc.__cause__
    return exc


def _kind(kind: type[BaseException]) -> str:
    return _WORD_START.sub("_", kind.__name__).lower() if issubclass(kind, RunnerError) else kind.__name__


def _traceback_text(exc: BaseException) -> str:
    result = ""

    def without(failure: BaseException) -> None:
        nonlocal result
        result = f"<no traceback: {type(failure).__name__} while it was formatted>"

    with boundary(without):
        result = encodable("".join(traceback.format_exception(exc, limit=-_MAX_FRAMES)))
    return result

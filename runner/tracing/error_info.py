"""Exceptions as data, whatever an exception does when it is looked at."""

from __future__ import annotations

import re
import traceback

from runner.errors import RunnerError, catch_foreign
from runner.types import ErrorInfo
from runner.util.safe_values import escape_surrogates, safe_str, truncate_text
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
    message = mask(safe_str(exc, f"<{type(exc).__name__} without a readable message>"))
    return ErrorInfo(
        type=error_type(type(exc)),
        message=truncate_text(message, MAX_ERROR_BYTES),
        traceback=truncate_text(mask(_traceback_text(exc)), MAX_ERROR_BYTES, keep_end=True),
    )


def _unwrapped(exc: BaseException) -> BaseException:
    """The exception inside hydra's wrapper, told by its name: hydra may not even be imported."""
    kind = type(exc)
    if kind.__name__ == "InstantiationException" and kind.__module__.startswith("hydra.") and exc.__cause__:
        return exc.__cause__
    return exc


def error_type(kind: type[BaseException]) -> str:
    """Return the ``error.type`` of an exception class.

    A class that was renamed keeps its old value in the class attribute ``error_type``, which subclasses do not inherit.
    Other classes use their name; subclasses of ``RunnerError`` in snake case.
    """
    if explicit := _explicit_type(kind):
        return explicit
    return _WORD_START.sub("_", kind.__name__).lower() if issubclass(kind, RunnerError) else kind.__name__


def error_attribute(kind: type[BaseException]) -> str:
    """Return the span attribute ``error`` of an exception class: its name, or the old name of a renamed class."""
    explicit = _explicit_type(kind)
    if not explicit or not issubclass(kind, RunnerError):
        return explicit or kind.__name__
    words = explicit.lstrip("_")
    return explicit[: -len(words)] + "".join(map(str.capitalize, words.split("_")))


def _explicit_type(kind: type[BaseException]) -> str:
    explicit = vars(kind).get("error_type")
    return explicit if isinstance(explicit, str) else ""


def _traceback_text(exc: BaseException) -> str:
    result = ""

    def without(failure: BaseException) -> None:
        nonlocal result
        result = f"<no traceback: {type(failure).__name__} while it was formatted>"

    with catch_foreign(without):
        result = escape_surrogates("".join(traceback.format_exception(exc, limit=-_MAX_FRAMES)))
    return result

"""Conversion of exceptions to data, and their published type names; safe for exceptions of third-party code."""

from __future__ import annotations

import re
import traceback

from runner.errors import EvaluationFault, RunnerError, catch_foreign
from runner.types import ErrorInfo
from runner.util.display_text import mask
from runner.util.resources import RESOURCES, describe_shortage, find_shortage
from runner.util.safe_values import escape_surrogates, safe_str, truncate_text

MAX_ERROR_BYTES = 16 * 1024
"""Maximum bytes of a message, of which the beginning is kept, and of a traceback, of which the end is kept."""

_MAX_FRAMES = 100
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def create_error_info(exc: BaseException) -> ErrorInfo:
    """Describe an exception and mask its secrets; never raises.

    Hydra's ``InstantiationException`` is replaced by its cause, the exception of the environment or agent. If files,
    memory or threads ran out, the type is ``resources``, whatever exception resulted, and the message starts with that.
    """
    exc = _unwrap_hydra(exc)
    kind = error_type(type(exc))
    message = mask(safe_str(exc, f"<{type(exc).__name__} without a readable message>"))
    if (shortage := find_shortage(exc)) is not None:
        message = f"{describe_shortage(shortage)} ({kind}: {message})"
        kind = RESOURCES
    return ErrorInfo(
        type=kind,
        message=truncate_text(message, MAX_ERROR_BYTES),
        traceback=truncate_text(mask(_traceback_text(exc)), MAX_ERROR_BYTES, keep_end=True),
        category="evaluation" if isinstance(exc, EvaluationFault) and kind != RESOURCES else None,
    )


def _unwrap_hydra(exc: BaseException) -> BaseException:
    kind = type(exc)  # compared by name, because hydra may not be imported
    if kind.__name__ == "InstantiationException" and kind.__module__.startswith("hydra.") and exc.__cause__:
        return exc.__cause__
    return exc


def error_type(kind: type[BaseException]) -> str:
    """Return the ``error.type`` of an exception class.

    A renamed class keeps its old ``error.type`` in the class attribute ``published_error_type``, which subclasses do
    not inherit. The type of any other class is its name, for subclasses of ``RunnerError`` in snake case, e.g.
    ``oracle_diverged``.
    """
    if explicit := _explicit_type(kind):
        return explicit
    return _WORD_START.sub("_", kind.__name__).lower() if issubclass(kind, RunnerError) else kind.__name__


def error_attribute(kind: type[BaseException]) -> str:
    """Return the span attribute ``error`` of an exception class: its name, or the published name of a renamed class."""
    explicit = _explicit_type(kind)
    if not explicit or not issubclass(kind, RunnerError):
        return explicit or kind.__name__
    words = explicit.lstrip("_")
    return explicit[: -len(words)] + "".join(map(str.capitalize, words.split("_")))


def _explicit_type(kind: type[BaseException]) -> str:
    explicit = vars(kind).get("published_error_type")
    return explicit if isinstance(explicit, str) else ""


def _traceback_text(exc: BaseException) -> str:
    result = ""

    def use_placeholder(failure: BaseException) -> None:
        nonlocal result
        result = f"<no traceback: formatting it raised {type(failure).__name__}>"

    with catch_foreign(use_placeholder):
        result = escape_surrogates("".join(traceback.format_exception(exc, limit=-_MAX_FRAMES)))
    return result

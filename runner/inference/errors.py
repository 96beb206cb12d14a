"""Why an endpoint gave no answer, and what follows from that."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

from runner.errors import InferenceFault
from runner.inference.lenient_json import as_dict, as_text, decode_json
from runner.util.text import one_line

Reason: TypeAlias = Literal["connection", "timeout", "busy", "server", "reply", "configuration", "request"]
"""``reply``: what came is no answer; ``request``: what was asked is refused, which no other endpoint would change."""

Mask: TypeAlias = Callable[[str], str]

MAX_QUOTE_CHARS = 240

_STATUS_REASONS: dict[int, Reason] = {
    401: "configuration",
    402: "configuration",
    403: "configuration",
    404: "configuration",
    405: "configuration",
    407: "configuration",
    408: "server",
    425: "server",
    429: "busy",
}
_UNKNOWN_MODEL = re.compile(
    r"(?i)unknown (?:model|function)|invalid model name|model_not_found|no such model|"
    r"\bmodel\b.{0,200}(?:not found|does not exist|must start with)"
)
_NO_TOOLS = re.compile(
    r"(?i)not support (?:tool|function)|tool.?choice.{0,40} requires|tools? (?:is|are) not supported"
)


class EndpointFailure(InferenceFault):
    """One endpoint did not answer one request.

    Attributes:
        reason: what kind of failure it is.
        status: of the HTTP reply, None where none came.
        retry_after_s: how long it asked to be left alone, in seconds.
        no_tools: whether it only refuses tools.
        unknown_model: whether it is the model that it does not know.
    """

    def __init__(
        self,
        reason: Reason,
        text: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        no_tools: bool = False,
        unknown_model: bool = False,
    ) -> None:
        """The text is shown as it is: it has to be on one line and without secrets."""
        super().__init__(text)
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s
        self.no_tools = no_tools
        self.unknown_model = unknown_model

    @property
    def otel_error_type(self) -> str:
        """A short name for traces: the status where there is one."""
        return str(self.status) if self.status is not None else self.reason

    @property
    def is_missing_path(self) -> bool:
        """Whether there is nothing at all under the path that was asked."""
        return self.status in (404, 405) and not self.unknown_model


def response_failure(status: int, body: bytes, mask: Mask, retry_after_s: float | None = None) -> EndpointFailure:
    """What a reply means whose status is not 200."""
    message = _error_message(body)
    reason = _reason(status, message)
    quoted = one_line(mask(message), MAX_QUOTE_CHARS)
    text = f"HTTP {status}: {quoted}" if quoted else f"HTTP {status}"
    if retry_after_s:
        text += f"; it asks to be left alone for {retry_after_s:.3g} s"
    return EndpointFailure(
        reason,
        text,
        status=status,
        retry_after_s=retry_after_s,
        no_tools=status in (400, 422, 500, 501, 502) and _NO_TOOLS.search(message) is not None,
        unknown_model=_UNKNOWN_MODEL.search(message) is not None,
    )


def _reason(status: int, message: str) -> Reason:
    if status in _STATUS_REASONS:
        return _STATUS_REASONS[status]
    if status >= 500:
        return "server"
    if 400 <= status < 500:
        return "configuration" if _UNKNOWN_MODEL.search(message) else "request"
    return "configuration" if 300 <= status < 400 else "reply"


def _error_message(body: bytes) -> str:
    """The message in an error's body, which has a handful of shapes; else its beginning."""
    content = as_dict(decode_json(body))
    error = content.get("error") or content.get("detail") or content.get("message")
    text = as_text(error) or as_text(as_dict(error).get("message"))
    return (text or body[:4096].decode("utf-8", "replace"))[:2000].strip()

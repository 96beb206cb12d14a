"""Failures of endpoints, with reasons that decide about retries and fallback to other endpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

from runner.errors import InferenceFault
from runner.util.display_text import one_line
from runner.util.json_accessors import as_dict, as_text, decode_json

Reason: TypeAlias = Literal["connection", "timeout", "busy", "server", "reply", "configuration", "request"]
"""``reply``: the reply is unusable; ``request``: the request is invalid, so any endpoint would reject it."""

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

_NO_TOKEN_IDS = re.compile(r"(?i)return_token_ids|logprobs")


class EndpointFailure(InferenceFault):
    """Failure of one endpoint to answer one request.

    Attributes:
        reason: kind of failure.
        status: HTTP status of the response, or None if there was none.
        retry_after_s: seconds to wait by the ``Retry-After`` header, or None.
        no_tools: whether the endpoint rejected the request only because of its tools.
        no_token_ids: whether the endpoint rejected the request because it asks for token ids.
        unknown_model: whether the endpoint does not know the model.
    """

    def __init__(
        self,
        reason: Reason,
        text: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        no_tools: bool = False,
        no_token_ids: bool = False,
        unknown_model: bool = False,
    ) -> None:
        """Create a failure; ``text`` is shown to the user, so it must be masked and on one line."""
        super().__init__(text)
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s
        self.no_tools = no_tools
        self.no_token_ids = no_token_ids
        self.unknown_model = unknown_model

    @property
    def otel_error_type(self) -> str:
        """The span attribute ``error.type``: the HTTP status, or the reason if there was no response."""
        return str(self.status) if self.status is not None else self.reason

    @property
    def is_missing_path(self) -> bool:
        """Whether the server has no such path (as opposed to no such model)."""
        return self.status in (404, 405) and not self.unknown_model


def response_failure(status: int, body: bytes, mask: Mask, retry_after_s: float | None = None) -> EndpointFailure:
    """Return the exception for a response with a status other than 200."""
    message = _error_message(body)
    reason = _reason(status, message)
    quoted = one_line(mask(message), MAX_QUOTE_CHARS)
    text = f"HTTP {status}: {quoted}" if quoted else f"HTTP {status}"
    if retry_after_s:
        text += f"; the server asks to wait {retry_after_s:.3g} s"
    return EndpointFailure(
        reason,
        text,
        status=status,
        retry_after_s=retry_after_s,
        no_tools=status in (400, 422, 500, 501, 502) and _NO_TOOLS.search(message) is not None,
        no_token_ids=status in (400, 422, 502) and _NO_TOKEN_IDS.search(message) is not None,
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
    content = as_dict(decode_json(body))
    error = content.get("error") or content.get("detail") or content.get("message")
    text = as_text(error) or as_text(as_dict(error).get("message"))
    return (text or body[:4096].decode("utf-8", "replace"))[:2000].strip()

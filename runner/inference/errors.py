"""Failures of endpoints, with reasons that decide about retries and fallback to other endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from runner.errors import InferenceFault
from runner.inference.refusals import (
    POLICY,
    UNKNOWN_MODEL,
    WRONG_KEY,
    context_figure,
    is_context_refusal,
    is_missing_path,
)
from runner.util.display_text import one_line
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json, encode_json

Reason: TypeAlias = Literal["connection", "timeout", "busy", "server", "reply", "configuration", "request"]
"""``reply``: the reply is unusable; ``request``: the endpoint refuses the request, which others may answer."""

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
_REFUSED_KEYS = {
    401: "a model server answers, but the API key is missing or not valid: ",
    403: "a model server answers, but the API key is missing, not valid or not permitted to do this: ",
}
_REFUSALS = frozenset({400, 404, 422, 500, 501, 502})
"""Statuses with which endpoints refuse a part of a request; llama.cpp and gateways do with those of a failed server."""


class EndpointFailure(InferenceFault):
    """Failure of one endpoint to answer one request.

    Attributes:
        retry_after_s: seconds to wait by the ``Retry-After`` header, or None.
        refusal: text of the response if the endpoint may answer a request of another shape; "" if it will not.
        context_tokens: size of the context, 0 if unknown, if the conversation is too long; None if it is not.
    """

    def __init__(
        self,
        reason: Reason,
        text: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        refusal: str = "",
        unknown_model: bool = False,
        context_tokens: int | None = None,
    ) -> None:
        """Create a failure; ``text`` is shown to the user, so it must be masked and on one line."""
        super().__init__(text)
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s
        self.refusal = refusal
        self.unknown_model = unknown_model
        self.context_tokens = context_tokens

    @property
    def otel_error_type(self) -> str:
        """The span attribute ``error.type``: the HTTP status, or the reason if there was no response."""
        return str(self.status) if self.status is not None else self.reason

    @property
    def is_about_key(self) -> bool:
        if self.reason != "configuration" or self.unknown_model:
            return False
        return self.status in (401, 403, None) or WRONG_KEY.search(str(self)) is not None

    @property
    def is_missing_path(self) -> bool:
        """Whether the server has no such path (as opposed to no such model)."""
        return self.status in (404, 405) and not self.unknown_model


def response_failure(status: int, body: bytes, mask: Mask, retry_after_s: float | None = None) -> EndpointFailure:
    """Also for a response with an error in place of an answer."""
    message = _error_message(body)
    unknown_model = UNKNOWN_MODEL.search(message) is not None
    is_refusal = status in _REFUSALS and not unknown_model and not WRONG_KEY.search(message)
    is_too_long = (is_refusal or status == 413) and is_context_refusal(message)
    quoted = one_line(mask(message), MAX_QUOTE_CHARS)
    text = _REFUSED_KEYS.get(status, "") + (f"HTTP {status}: {quoted}" if quoted else f"HTTP {status}")
    if retry_after_s:
        text += f"; the server asks to wait {retry_after_s:.3g} s"
    if is_too_long or POLICY.search(message) or (status == 404 and is_missing_path(message)):
        is_refusal = False
    return EndpointFailure(
        "request" if is_too_long or (is_refusal and status == 404) else _reason(status, message),
        text,
        status=status,
        retry_after_s=retry_after_s,
        refusal=message or "without a text" if is_refusal else "",
        unknown_model=unknown_model,
        context_tokens=(context_figure(message) or 0) if is_too_long else None,
    )


def _reason(status: int, message: str) -> Reason:
    if status in _STATUS_REASONS:
        return _STATUS_REASONS[status]
    if status >= 500:
        return "server"
    if 400 <= status < 500:
        is_ours = UNKNOWN_MODEL.search(message) or WRONG_KEY.search(message)
        return "configuration" if is_ours else "request"
    return "configuration" if 300 <= status < 400 else "reply"


def _error_message(body: bytes) -> str:
    value = decode_json(body)
    if isinstance(value, list) and value:  # Gemini
        value = value[0]
    content = as_dict(value)
    error = content.get("error") or content.get("detail") or content.get("message")
    named = as_dict(error)
    text = as_text(error) or as_text(named.get("message")) or as_text(named.get("msg"))
    if text and (field := as_text(named.get("param"))) and field not in text:
        text = f"{text} ({field})"
    if text and (cause := as_text(as_dict(named.get("metadata")).get("raw"))):  # OpenRouter quotes its provider
        text = f"{text}: {cause}"
    if text and (code := as_text(named.get("code"))) and "_" in code and code not in text:
        text = f"{text} ({code})"
    if not text and isinstance(error, list):  # FastAPI's problems, which quote the request beside their messages
        text = "; ".join(map(_describe_problem, map(as_dict, error)))
    if not text and error:
        text = encode_json(error).decode()
    return (text or body[:4096].decode("utf-8", "replace"))[:2000].strip()


def _describe_problem(problem: dict[str, Any]) -> str:
    return f"{'.'.join(map(str, as_list(problem.get('loc'))))}: {as_text(problem.get('msg'))}"

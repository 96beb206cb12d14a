"""Failures of endpoints, with reasons that decide about retries and fallback to other endpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Final, Literal, TypeAlias

from runner.errors import InferenceFault
from runner.util.display_text import one_line
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json, encode_json

Reason: TypeAlias = Literal["connection", "timeout", "busy", "server", "reply", "configuration", "request"]
"""``reply``: the reply is unusable; ``request``: the endpoint refuses the request, which others may answer."""

Mask: TypeAlias = Callable[[str], str]

_REFUSED_KEYS = {
    401: "a model server answers, but the API key is missing or not valid: ",
    403: "a model server answers, but the API key is missing, not valid or not permitted to do this: ",
}
_REFUSALS = frozenset({400, 404, 422, 500, 501, 502})
"""Statuses with which endpoints refuse a part of a request; llama.cpp and gateways do with those of a failed server."""


class EndpointFailure(InferenceFault):
    """Failure of one endpoint to answer one request; its text is shown to the user, masked and on one line.

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


def response_failure(
    status: int, body: bytes, mask: Mask, retry_after_s: float | None = None, proxy: str = ""
) -> EndpointFailure:
    """Also for a response with an error in place of an answer; ``proxy`` is the URL of the proxy that sent it."""
    message = _error_message(body)
    unknown_model = UNKNOWN_MODEL.search(message) is not None
    is_refusal = status in _REFUSALS and not unknown_model and not WRONG_KEY.search(message)
    is_too_long = (is_refusal or status == 413) and _CONTEXT.search(message) and not _ANSWER_LIMIT.search(message)
    quoted = one_line(mask(message), 240)
    text = _REFUSED_KEYS.get(status, "") + (f"HTTP {status}: {quoted}" if quoted else f"HTTP {status}")
    if proxy and status in (502, 503, 504):
        text += f" (through the proxy {one_line(proxy, 100)})"
    if retry_after_s:
        text = text.rstrip(".") + f"; the server asks to wait {retry_after_s:.3g} s"
    is_about_path = not message or (_NO_PATH.match(message) is not None and "model" not in message.lower())
    if is_too_long or POLICY.search(message) or (status == 404 and is_about_path):
        is_refusal = False
    return EndpointFailure(
        "request" if is_too_long or (is_refusal and status == 404) else _reason(status, message),
        text,
        status=status,
        retry_after_s=retry_after_s,
        refusal=message or "without a text" if is_refusal else "",
        unknown_model=unknown_model,
        context_tokens=_context_figure(message) if is_too_long else None,
    )


def _reason(status: int, message: str) -> Reason:
    match status:
        case 401 | 402 | 403 | 404 | 405 | 407:
            return "configuration"
        case 408 | 425:
            return "server"
        case 429:
            return "busy"
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
        problems = [(as_list(each.get("loc")), as_text(each.get("msg"))) for each in map(as_dict, error)]
        text = "; ".join(f"{'.'.join(map(str, place))}: {problem}" for place, problem in problems)
    if not text and error:
        text = encode_json(error).decode()
    return (text or body[:4096].decode("utf-8", "replace"))[:2000].strip()


Field: TypeAlias = Literal[
    "token_ids", "stream_options", "reasoning", "max_tokens", "temperature", "system", "stream", "tools"
]
"""What a request may have and an endpoint may not take."""

WRONG_KEY: Final = re.compile(
    r"(?i)api.?(?:key|token)|subscription key|password|unauthori[sz]ed|authenticat|"
    r"(?:invalid|missing|expired) (?:access )?token|credential|"
    r"not authori[sz]ed|\bauthorization header|access denied|forbidden|payment required|key not valid|"
    r"(?:invalid|missing|expired|incorrect|malformed) (?:\w+ ){0,2}(?:token|key|jwt)\b|"
    r"(?:token|key|jwt) (?:is |was |has )?(?:not valid|invalid|expired|missing|revoked)|"
    r"account.{0,40}(?:deactivat|suspend|disabled|good standing)|(?:enough|out of|no) (?:\w+ )?credits?\b|"
    r"permission.?denied|billing|insufficient.(?:balance|credit|fund|quota)|credit balance|exceeded your current quota"
)
UNKNOWN_MODEL: Final = re.compile(
    r"(?i)unknown (?:model|function)|invalid model\b|model_not_found|no such model|not a valid model|no models? loaded|"
    r"unsupported model\b|model.?not.?supported|\bmodel\b.{0,60}(?:not available|unavailable|deprecated)|"
    r"not found the model|no endpoints found for|unable to access model|"
    r"\b(?:models?|deployment)\b.{0,200}"
    r"(?:not found|not exist|must start with|is not loaded|not been pulled|decommissioned)"
)
POLICY: Final = re.compile(
    r"(?i)content.?(?:filter|polic|management|safety|inspection)|safety|moderation|responsible.?ai|inappropriate|"
    r"data_inspection|guardrail|usage polic|flagged|prohibited|"
    r"content exists risk|high risk|sensitive (?:content|information|words?)|敏感"
)
_CONTEXT: Final = re.compile(
    r"(?i)context.{0,20}(?:length|size|window)|\bcontext (?:is )?(?:full|overflow)|exceed_context|input token count|"
    r"maximum (?:number of )?(?:allowed )?(?:input |prompt )?tokens|too many (?:input |prompt )?tokens|"
    r"(?:prompt|input|messages?|request|conversation)\b.{0,60}\btoo (?:long|large)|reduce the length|"
    r"context (?:limit|overflow)|context_length|range of input length|max.?seq.?len|"
    r"(?:input|prompt).{0,20}tokens?\b.{0,30}exceeds?.{0,30}limit|prompt exceeds|"
    r"longer than the (?:model|maximum)|max_new_tokens.{0,20} must be|\binputs?\W{1,3}must have less|token limit|"
    r"(?:prompt|input) length|exceeds? max(?:imum)? length|max length exceeded"
)
_ANSWER_LIMIT: Final = re.compile(
    r"(?i)max_(?:completion_|new_)?tokens\W.{0,60}(?:too large|at most|less than)|allowed number of output tokens|"
    r"output token limit"
)
_FIGURES: Final = (
    re.compile(r"\[1, ?(\d+)\]"),
    re.compile(r"(?i)n_ctx\W{1,4}(\d+)"),
    re.compile(
        r"(?i)(?:context (?:length|window|size)|maximum|limit|max|less than)"
        r"(?![^\d\n]{0,60}\bby \d)[^\d\n]{0,60}?(\d[\d,_]*)"
    ),
    re.compile(r"(?i)(?<![\d,_])(\d[\d,_]*+)\s*+(?:tokens?\s*+)?(?:maximum|max\b)"),
)
_FIELDS: Final[dict[Field, re.Pattern[str]]] = {
    "token_ids": re.compile(r"(?i)return_token_ids|logprobs|extra_body|include_raw_response"),
    "stream_options": re.compile(r"(?i)stream_options|include_usage"),
    "max_tokens": re.compile(r"(?i)max_(?:completion_|new_)?tokens"),
    "temperature": re.compile(r"(?i)\btemperature\b"),
    "reasoning": re.compile(
        r"(?i)reasoning.?(?:content|details)|['\"`]reasoning['\"`]|thinking (?:mode|block|content)"
    ),
    "system": re.compile(
        r"(?i)system.{0,20}(?:role|message|prompt|instruction)|role.{0,40}system|developer instruct|"
        r"roles must alternate"
    ),
    "stream": re.compile(r"(?i)\bstream(?:s|ed|ing)?\b"),
    "tools": re.compile(r"(?i)\btools?\b|tool.?(?:calls?|calling|use|choice)|functions?.?call|\bfunctions\b"),
}
"""How refusals name a field; of several named ones, the first is meant."""
_MUST_RETURN: Final = re.compile(r"(?i)must|miss(?:es|ing)|required|pass(?:ed)? back|expect|need")
_NOT_TAKEN: Final = re.compile(r"(?i)not (?:be|allowed|permitted|support)|un(?:known|supported|expected|recogni)")
_NO_PATH: Final = re.compile(r"(?i)\W*(?:404\W*)?(?:page |path |route |url )?(?:method )?not (?:found|allowed)\W*|\s*<")


def _context_figure(message: str) -> int:
    """Return 0 if the message does not name the size of the context."""
    matches = filter(None, (pattern.search(message) for pattern in _FIGURES))
    figures = (int(match[1].replace(",", "").replace("_", "")[:12]) for match in matches)
    return next((tokens for tokens in figures if tokens >= 16), 0)


def named_field(message: str, present: Container[Field]) -> Field | None:
    """Return the field that a refusal names, of those that the request has; None if it names none of them."""
    return next((field for field, pattern in _FIELDS.items() if field in present and pattern.search(message)), None)


def wants_reasoning(message: str) -> bool:
    """Return whether a refusal that names the reasoning misses it, instead of not taking it."""
    return _MUST_RETURN.search(message) is not None and _NOT_TAKEN.search(message) is None


def wants_completion_tokens(message: str) -> bool:
    return "max_completion_tokens" in message and _ANSWER_LIMIT.search(message) is None

"""What the text of a refused request means: a wrong key, a full context, a policy, or a field that is not taken.

The wordings are those of vLLM, SGLang, llama.cpp, LM Studio, Ollama, TensorZero, Mistral, DeepSeek, Gemini, OpenAI,
OpenRouter, Groq and TGI.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final, Literal, TypeAlias

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


def is_context_refusal(message: str) -> bool:
    return _CONTEXT.search(message) is not None and _ANSWER_LIMIT.search(message) is None


def context_figure(message: str) -> int | None:
    for pattern in _FIGURES:
        if (match := pattern.search(message)) and (
            tokens := int(match[1].replace(",", "").replace("_", "")[:12])
        ) >= 16:
            return tokens
    return None


def is_missing_path(message: str) -> bool:
    """Return whether a 404 is about the path rather than about the request."""
    return not message or (_NO_PATH.match(message) is not None and "model" not in message.lower())


def named_field(message: str, present: Container[Field]) -> Field | None:
    """Return the field that a refusal names, of those that the request has; None if it names none of them."""
    return next((field for field, pattern in _FIELDS.items() if field in present and pattern.search(message)), None)


def wants_reasoning(message: str) -> bool:
    """Return whether a refusal that names the reasoning misses it, instead of not taking it."""
    return _MUST_RETURN.search(message) is not None and _NOT_TAKEN.search(message) is None


def wants_completion_tokens(message: str) -> bool:
    return "max_completion_tokens" in message and _ANSWER_LIMIT.search(message) is None

"""Token ids and log-probabilities in the replies of an endpoint, streamed or whole.

vLLM sends them if a request has ``return_token_ids`` and ``logprobs``: ``prompt_token_ids`` beside ``choices`` or in
the choice, ``token_ids`` in each choice beside ``message`` or ``delta``, and ``logprobs.content[].logprob``. Its
parsers of tool calls and reasoning may swallow the chunks that have the ids, so their number is compared with the
usage. TensorZero drops fields that it does not know in both directions: what it adds to the provider's request is in
``tensorzero::extra_body``, and it quotes the provider's answer as a text of JSON.
"""

from __future__ import annotations

from typing import Any, Final

from runner.types.sequences import MAX_SEQUENCE_IDS, MAX_TOKEN_ID, Label, Problem, TokenSequence
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json

REQUEST_FIELDS: Final = {"return_token_ids": True, "logprobs": True}
"""Fields of a request that asks for token ids and log-probabilities."""
GATEWAY_FIELDS: Final[dict[str, Any]] = {
    "tensorzero::extra_body": [{"pointer": f"/{name}", "value": value} for name, value in REQUEST_FIELDS.items()],
    "tensorzero::include_raw_response": True,
}
"""The same for TensorZero, which passes them on and returns what the provider answered."""
_MAX_NEGATIVE: Final = 1e300


class TokenCapture:
    """Collects what one reply has of token ids; values that are none are ignored."""

    def __init__(self, endpoint: str, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self._prompt_ids: list[int] = []
        self._completion_ids: list[int] = []
        self._logprobs: list[float] = []
        self._problems: set[Problem] = set()

    def add(self, value: dict[str, Any]) -> None:
        """The value is a decoded reply, or one event of a streamed reply."""
        value = _quoted_by_gateway(value)
        choices = map(as_dict, as_list(value.get("choices")))
        choice = next((each for each in choices if each.get("index") in (0, None)), {})
        prompt = value.get("prompt_token_ids") or choice.get("prompt_token_ids")
        content = as_list(as_dict(choice.get("logprobs")).get("content"))
        self.add_values(prompt, choice.get("token_ids"), [as_dict(item).get("logprob") for item in content])

    def add_values(self, prompt: object, completion: object, logprobs: object) -> None:
        """Add ids of the prompt, unless it is known, and ids and log-probabilities of the completion, of any form."""
        if not self._prompt_ids:
            self._add_ids(prompt, self._prompt_ids)
        self._add_ids(completion, self._completion_ids)
        for logprob in as_list(logprobs)[: MAX_SEQUENCE_IDS - len(self._logprobs)]:
            if type(logprob) in (int, float) and -_MAX_NEGATIVE < logprob <= 0:  # NaN is not in any range
                self._logprobs.append(float(logprob))

    def sequence(self, label: Label, n_completion: int | None, cause: str = "") -> TokenSequence:
        """``n_completion`` is the number of completion tokens by the endpoint's own count; None if it has none."""
        n_ids, n_logprobs = len(self._completion_ids), len(self._logprobs)
        found = set(self._problems)
        if not n_ids:
            found.add("no_ids")
        elif n_completion is not None and n_completion != n_ids:
            found.add("incomplete")
        if not self._prompt_ids:
            found.add("no_prompt_ids")
        if not n_logprobs:
            found.add("no_logprobs")
        elif n_ids and n_logprobs != n_ids:
            found.add("unequal")
        return TokenSequence(
            label=label,
            endpoint=self._endpoint,
            model=self._model,
            prompt_ids=self._prompt_ids,
            completion_ids=self._completion_ids,
            logprobs=self._logprobs,
            n_completion=n_completion,
            problems=tuple(sorted(found)),
            cause=cause,
        )

    @property
    def is_empty(self) -> bool:
        return not (self._prompt_ids or self._completion_ids or self._logprobs or self._problems)

    def _add_ids(self, value: object, into: list[int]) -> None:
        if value is None:
            return
        ids = as_list(value)
        room = MAX_SEQUENCE_IDS - len(into)
        if len(ids) > room:
            self._problems.add("too_long")
        valid = [each for each in ids[:room] if type(each) is int and 0 <= each <= MAX_TOKEN_ID]
        if len(valid) < len(ids[:room]) or not isinstance(value, list):
            self._problems.add("invalid")
        into += valid


def _quoted_by_gateway(value: dict[str, Any]) -> dict[str, Any]:
    """Return the provider's reply or event that TensorZero quotes, else the value itself.

    TensorZero also quotes the answers of providers that failed, without ``model_inference_id``, and those of models
    that it called for candidates: if more than one remains, it is unknown which of them became the answer.
    """
    if chunk := as_text(value.get("tensorzero_raw_chunk")):
        return as_dict(decode_json(chunk.encode("utf-8", "replace")))
    if value.get("object") == "chat.completion.chunk":
        return value
    entries = [as_dict(entry) for entry in as_list(value.get("tensorzero_raw_response"))]
    texts = [as_text(entry.get("data")) for entry in entries if entry.get("model_inference_id")]
    return as_dict(decode_json(texts[0].encode("utf-8", "replace"))) if len(texts) == 1 else value

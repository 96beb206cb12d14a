"""What refusals of real servers mean, by their words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import pytest

from runner.inference.errors import (
    EndpointFailure,
    Field,
    named_field,
    response_failure,
    wants_completion_tokens,
    wants_reasoning,
)
from tests.support.ruled_model import Form, error_body
from tests.support.server_wordings import ANONYMOUS, CONTEXTS, MODELS, PARTS, POLICIES, WRONG_KEYS, Part, Wording

FIELDS: dict[Part, Field] = {
    "stream with tools": "stream",
    "old max_tokens": "max_tokens",
    "missing reasoning": "reasoning",
    "missing reasoning of calls": "reasoning",
}


def failures(wording: Wording) -> Iterable[EndpointFailure]:
    """Return the failures of a refusal in every form, one of which quotes the request."""
    request = {"messages": [{"role": "user", "content": "Your api key, tools and model not found: content policy"}]}
    for form in get_args(Form):
        yield response_failure(wording.status, error_body(form, wording.status, wording.text, request), str)


def named(wordings: Iterable[Wording]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("wording", wordings, ids=lambda each: each.server)


@pytest.mark.parametrize(("part", "wording"), [(part, each) for part, all in PARTS.items() for each in all])
def test_a_refusal_names_its_field(part: Part, wording: Wording) -> None:
    present: set[Field] = set(get_args(Field))
    for failure in failures(wording):
        assert (failure.unknown_model, failure.context_tokens) == (False, None)
        assert named_field(failure.refusal, present) == FIELDS.get(part, part), failure.refusal
        assert wants_completion_tokens(failure.refusal) == (part == "old max_tokens")
        if FIELDS.get(part, part) == "reasoning":
            assert wants_reasoning(failure.refusal) == part.startswith("missing")


@named(ANONYMOUS)
def test_a_refusal_without_a_name_may_mean_any_field(wording: Wording) -> None:
    for failure in failures(wording):
        assert failure.refusal and failure.context_tokens is None
        assert named_field(failure.refusal, set(get_args(Field))) is None, failure.refusal


@named([*WRONG_KEYS, *MODELS, *POLICIES])
def test_a_key_a_model_and_a_policy_are_no_reason_for_another_shape(wording: Wording) -> None:
    reason = "request" if wording in POLICIES else "configuration"
    for failure in failures(wording):
        assert (failure.reason, failure.refusal) == (reason, "")
        assert wording in POLICIES or failure.unknown_model == (wording in MODELS)


@named(CONTEXTS)
def test_a_conversation_that_is_too_long_is_recognized_with_the_figure(wording: Wording) -> None:
    text = wording.text.format(limit=4096, given=5120)
    figure = 4096 if "{limit}" in wording.text else 0
    for failure in failures(wording._replace(text=text)):
        assert (failure.context_tokens, failure.refusal, failure.reason) == (figure, "", "request")

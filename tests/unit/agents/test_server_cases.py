"""Single servers whose rules once ended every episode: what they want back, what they refuse, how they say nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.config.profile import EndpointConfig
from runner.episode.factory import EpisodeFactory
from runner.inference.manager import InferenceManager
from runner.types import Limits, Outcome, Trajectory
from tests.support.inference import VirtualTime, agent_settings
from tests.support.rude_model import (
    RudeModel,
    completion_response,
    delta_chunk,
    http_response,
    sse_event,
    stream_response,
)
from tests.support.ruled_episodes import RuledEpisode
from tests.support.ruled_model import Context, Form, Reasoning, Refusal, Rules, Streaming
from tests.support.server_wordings import CONTEXTS, PARTS, WRONG_KEYS, Part, Wording

LEARNED: dict[Part, str] = {
    "tools": "tools as text",
    "stream": "no streaming",
    "stream with tools": "no streaming",
    "stream_options": "no stream_options",
    "temperature": "no temperature",
    "max_tokens": "no max_tokens",
    "old max_tokens": "max_tokens as max_completion_tokens",
    "system": "folded system",
}
REFUSED = [(part, PARTS[part][0]) for part in LEARNED]  # test_refusals.py reads all wordings


async def play(*rules: Rules, **options: Any) -> RuledEpisode:  # noqa: ANN401
    known: dict[str, Any] = {"format": "auto", "stream": True, "temperature": 0.7, "max_tokens": 64}
    return await RuledEpisode(*rules).play(**{**known, **options})


@pytest.mark.parametrize(
    ("reasoning", "streaming"),
    [("reasoning", "whole"), ("reasoning_content", "streamed"), ("reasoning", "pieces")],
)
async def test_reasoning_goes_back_with_the_turns_that_called_tools(reasoning: Reasoning, streaming: Streaming) -> None:
    refusal = Refusal("missing reasoning of calls", PARTS["missing reasoning of calls"][0])
    episode = await play(Rules(refusals=(refusal,), reasoning=reasoning, streaming=streaming))
    assert (episode.trajectory.outcome, episode.lessons) == (Outcome.SUCCESS, {})
    (server,) = episode.servers
    sent = [message for message in server.received[-1].chat if message["role"] == "assistant"]
    assert [message[reasoning] for message in sent] == [f"reasoning {number} of a" for number in range(3)]
    assert [*episode.unequal_chats()] == []


async def test_reasoning_of_plain_turns_goes_back_where_the_server_wants_it() -> None:
    refusal = Refusal("missing reasoning", PARTS["missing reasoning"][0])
    episode = await play(Rules(refusals=(refusal,), reasoning="reasoning_content"), format="react")
    assert episode.trajectory.outcome is Outcome.SUCCESS
    (server,) = episode.servers
    assert [each.cause for each in server.received] == ["", "missing reasoning", "", "", ""]
    (warning,) = [warning for step in episode.trajectory.timesteps for warning in step.warnings]
    assert warning.startswith("a: learned reasoning of all turns sent back from HTTP 400: The `reasoning_content` in")


@pytest.mark.parametrize("streaming", ["whole", "streamed", "pieces"])
async def test_signatures_of_calls_and_messages_go_back(streaming: Streaming) -> None:
    episode = await play(Rules(signs=True, streaming=streaming, reasoning="reasoning_content"))
    assert (episode.trajectory.outcome, episode.lessons) == (Outcome.SUCCESS, {})
    (server,) = episode.servers
    assert server.violations == []
    *_, reply, _ = server.received[-1].chat
    assert reply["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "signature 2 of a"}}
    assert reply["signature"] == "signature of turn 2 of a"


@pytest.mark.parametrize(("part", "wording"), REFUSED)
async def test_a_field_that_a_server_names_is_left_out_and_the_step_shows_it(part: Part, wording: Wording) -> None:
    episode = await play(Rules(refusals=(Refusal(part, wording),)), Rules())
    steps = episode.trajectory.timesteps
    assert (episode.trajectory.outcome, {step.endpoint for step in steps}) == (Outcome.SUCCESS, {"a"})
    first, other = episode.servers
    n_refused = 2 if wording.status >= 500 else 1
    assert [each.cause for each in first.received] == [part] * n_refused + [""] * 4
    assert (other.received, first.violations) == ([], [])
    (warning,) = steps[0].warnings
    assert warning.startswith(f"a: learned {LEARNED[part]} from HTTP {wording.status}: ")
    assert not any(step.warnings for step in steps[1:])


async def test_a_context_that_is_too_small_shortens_the_chat_by_the_figure_of_the_server() -> None:
    episode = await play(Rules(context=Context(1500, 4.0, CONTEXTS[0])), env="WordyCounter")
    assert episode.trajectory.outcome is Outcome.SUCCESS
    (server,) = episode.servers
    assert [each.cause for each in server.received if each.cause] == ["context"]
    assert {learned.context_tokens for learned in episode.lessons.values()} == {1500}
    assert [*episode.unequal_chats()] == []


async def test_where_no_chat_is_short_enough_the_next_endpoint_is_used() -> None:
    episode = await play(Rules(context=Context(50, 4.0, CONTEXTS[0])), Rules())
    steps = episode.trajectory.timesteps
    assert (episode.trajectory.outcome, {step.endpoint for step in steps}) == (Outcome.SUCCESS, {"b"})
    assert "a: HTTP 400: This model's maximum" in steps[0].warnings[-1]


@pytest.mark.parametrize("form", ["list", "error", "plain"])
async def test_a_wrong_key_ends_at_once_at_its_endpoint(form: Form) -> None:
    key = next(each for each in WRONG_KEYS if each.server == "Gemini")
    alone = await play(Rules(form=form, end=(0, key)))
    assert alone.trajectory.outcome is Outcome.ERROR
    assert len(alone.servers[0].received) == 1
    assert alone.trajectory.error_info is not None
    assert "API key not valid" in alone.trajectory.error_info.message
    both = await play(Rules(form=form, end=(0, key)), Rules())
    assert {step.endpoint for step in both.trajectory.timesteps} == {"b"}
    assert (len(both.servers[0].received), both.lessons) == (1, {})


def empty_answer(finish: str, **delta: str) -> bytes:
    """Return a stream without a text."""
    details = {"completion_tokens_details": {"reasoning_tokens": 512}}
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 512, **details}}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return stream_response(b"".join(map(sse_event, (delta_chunk(content="", **delta), end, usage, b"[DONE]"))))


async def play_script(*script: bytes, n_steps: int = 2) -> tuple[Trajectory, int]:
    """Play against a server with these answers; return the number of requests, too."""
    with RudeModel(*script) as server:
        settings = agent_settings(EndpointConfig(url=server.url, name="a", kind="openai"), model="m", stream=True)
        runner = EpisodeFactory(
            env_cfg={"_target_": "tests.support.fakes.Counter"},
            agent_cfg={"_target_": "runner.agents.model.ReactAgent", "settings": settings},
            inference_mngr=InferenceManager(settings, {}, VirtualTime().timing()),
            limits=Limits(max_rounds=n_steps, max_duration_s=60),
        )
        return await runner.play_episode(), len(server.chat_requests)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (empty_answer("length"), "cut at its length limit: 512 tokens, all reasoning"),
        (empty_answer("content_filter"), "withheld by the endpoint's content filter"),
        (empty_answer("stop", refusal="I cannot help with that."), "the model refused: I cannot help with that."),
    ],
    ids=["length", "filter", "refusal"],
)
async def test_an_empty_answer_with_a_cause_is_an_invalid_action(answer: bytes, cause: str) -> None:
    trajectory, n_requests = await play_script(answer)
    assert (trajectory.outcome, n_requests) == (Outcome.TRUNCATED, 2)
    for step in trajectory.timesteps:
        assert not step.valid
        assert cause in step.observation[0]["content"]
        assert step.tokens is not None
        assert (step.tokens.completion, step.tokens.reasoning) == (512, 512)


async def test_an_empty_answer_without_a_cause_is_requested_once_more() -> None:
    trajectory, n_requests = await play_script(empty_answer("stop"), completion_response("Action: up"), n_steps=1)
    assert ([step.valid for step in trajectory.timesteps], n_requests) == ([True], 2)
    trajectory, n_requests = await play_script(empty_answer("stop"), n_steps=2)
    assert ([step.valid for step in trajectory.timesteps], n_requests) == ([False, False], 4)


async def test_an_error_in_place_of_an_answer_is_quoted() -> None:
    body = json.dumps({"code": 429, "message": "quota exhausted for this key"}).encode()
    trajectory, _ = await play_script(http_response(200, body))
    assert trajectory.outcome is Outcome.ERROR
    assert trajectory.error_info is not None
    assert "an error instead of an answer: quota exhausted for this key" in trajectory.error_info.message

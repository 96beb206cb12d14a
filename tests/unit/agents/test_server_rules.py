"""Whole conversations with model servers that draw their rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.profile import Capabilities, EndpointConfig, LessonKey
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.inference.endpoints import resolve_endpoints
from runner.inference.gate import LocalGate
from runner.inference.manager import InferenceManager
from runner.tracing import SpanList, Tracer
from runner.types import EpisodeEvent, Limits, Outcome, TimestepPlayed, Trajectory
from tests.support.inference import VirtualTime, agent_settings, episode_header
from tests.support.rude_model import (
    RudeModel,
    completion_response,
    delta_chunk,
    http_response,
    sse_event,
    stream_response,
)
from tests.support.ruled_model import (
    REASONING_FIELDS,
    Context,
    Form,
    Json,
    Reasoning,
    Received,
    Refusal,
    RuledModel,
    Rules,
    Streaming,
)
from tests.support.server_wordings import ANONYMOUS, CONTEXTS, MODELS, PARTS, POLICIES, WRONG_KEYS, Part, Wording

KEYS = {"a": "sk-0123456789abcdef-first", "b": "sk-fedcba9876543210-other"}


class RuledEpisode:
    """A played episode.

    Attributes:
        lessons: what was learned, by endpoint and tools.
        stored: everything that the episode leaves behind, as JSON.
    """

    def __init__(self, *rules: Rules) -> None:
        self.servers = [RuledModel(each, name, KEYS[name]) for each, name in zip(rules, "ab", strict=False)]
        self.trajectory = Trajectory(episode_id="")
        self.lessons: dict[LessonKey, Any] = {}
        self.stored = ""
        self._marks: list[list[int]] = [[0] * len(self.servers)]

    async def play(self, *, env: str = "ToolAnswerCounter", goal: int = 4, **agent: Any) -> RuledEpisode:  # noqa: ANN401
        """Play the episode; time passes only in pauses."""
        with ExitStack() as stack:
            endpoints = [
                EndpointConfig(url=stack.enter_context(server).url, name=name, kind="openai", api_key_env=f"KEY_{name}")
                for server, name in zip(self.servers, "ab", strict=False)
            ]
            settings = agent_settings(*endpoints, model="m", **agent)
            environ = {f"KEY_{name}": key for name, key in KEYS.items()}
            time, spans = VirtualTime().timing(), SpanList()
            gate = LocalGate(resolve_endpoints(settings, environ), time.clock.monotonic)
            gate.lessons.watch(self.lessons.__setitem__)
            runner = EpisodeFactory(
                env_cfg={"_target_": f"tests.support.fakes.{env}", "goal": goal},
                agent_cfg={"_target_": "runner.agents.model.ReactAgent", "settings": settings},
                inference_mngr=InferenceManager(settings, environ, time, gate),
                limits=Limits(max_rounds=goal + 3, max_duration_s=60),
            )
            events: list[EpisodeEvent] = []

            def emit(event: EpisodeEvent) -> None:
                events.append(event)
                if isinstance(event, TimestepPlayed):
                    self._marks.append([len(server.received) for server in self.servers])

            context = EpisodeContext(header=episode_header(), tracer=Tracer("full", [spans]), emit=emit)
            self.trajectory = await runner.play_episode(context=context)
            self._marks.append([len(server.received) for server in self.servers])
        self.stored = str(msgspec.json.encode([self.trajectory, events, spans.spans]))
        return self

    def requests(self, server: RuledModel) -> list[list[Received]]:
        """Return the requests that each step, and what came after the last one, sent to a server."""
        number = self.servers.index(server)
        marks = [mark[number] for mark in self._marks]
        return [server.received[start:end] for start, end in pairwise(marks)]

    def unequal_chats(self) -> Iterator[tuple[list[Json], list[Json]]]:
        """Yield each chat of a step that is not what was sent, and what was sent."""
        by_name = dict(zip("ab", self.servers, strict=False))
        for number, step in enumerate(self.trajectory.timesteps):
            sent = self.requests(by_name[step.endpoint or ""])[number]
            (*chat, _), received = step.chats[0], [each.chat for each in sent if not each.cause]
            if [*map(plain_message, chat)] not in [[*map(plain_message, each)] for each in received]:
                yield chat, received[-1]


def plain_message(message: Mapping[str, Any]) -> Json:
    """Return a message with its reasoning under one name, whatever the server calls it, if only that has it."""
    has_details = "reasoning_details" in message
    reasoning = None if has_details else next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    plain = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    return {**plain, "reasoning": reasoning}


N_SHAPES = 9
"""Parts of a request that are left out alone; the reasoning is left out and added."""
REASONING: tuple[Part, ...] = ("reasoning", "missing reasoning of calls", "missing reasoning")
EXCLUSIVE: list[tuple[Part, ...]] = [REASONING, ("stream", "stream with tools"), ("max_tokens", "old max_tokens")]

FAILING = st.lists(st.integers(1, 14), max_size=2).map(
    lambda numbers: [number for number in numbers if number - 1 not in numbers or number == 2]
)
"""Requests that fail; only the first one also if it is repeated, since what fails twice is taken for a refusal."""


@st.composite
def rules(draw: st.DrawFn, *, n_anonymous: int = 2) -> Rules:
    reasoning: Reasoning = draw(st.sampled_from(get_args(Reasoning)))
    parts = draw(st.lists(st.sampled_from([*PARTS]), unique=True, max_size=5))
    for group in EXCLUSIVE:
        taken = [part for part in parts if part in group]
        parts = [part for part in parts if part not in taken[1:]]
    if reasoning in ("", "<think>"):
        parts = [part for part in parts if part not in REASONING]
    anonymous = set(draw(st.permutations(parts))[: draw(st.integers(0, n_anonymous))])
    refusals = [Refusal(part, draw(st.sampled_from(ANONYMOUS if part in anonymous else PARTS[part]))) for part in parts]
    context = draw(
        st.none()
        | st.builds(
            Context,
            tokens=st.integers(1500, 4000),
            chars_per_token=st.sampled_from([4.0, 3.0, 2.5]),
            wording=st.sampled_from(CONTEXTS),
        )
    )
    return Rules(
        refusals=tuple(refusals),
        form=draw(st.sampled_from(get_args(Form))),
        quotes_key=draw(st.booleans()),
        streaming=draw(st.sampled_from(get_args(Streaming))),
        reasoning=reasoning,
        signs=draw(st.booleans()),
        ids=draw(st.sampled_from(["long", "nine", "none"])),
        has_bare_calls=draw(st.booleans()),
        context=context,
        failing=frozenset(draw(FAILING)),
    )


def agents() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "format": st.sampled_from(["auto", "tools", "react"]),
            "stream": st.booleans(),
            "temperature": st.sampled_from([None, 0.7]),
            "max_tokens": st.sampled_from([None, 64]),
        }
    )


ENVS = st.sampled_from(["Counter", "ToolAnswerCounter", "WordyCounter"])


def unexplained(learned: Capabilities, parts: set[Part]) -> list[str]:
    """Return what is known of an endpoint that is not one of its rules."""
    causes: list[tuple[bool, set[Part]]] = [
        ("stream_options" in learned.omit, {"stream_options"}),
        ("temperature" in learned.omit, {"temperature"}),
        ("max_tokens" in learned.omit or "max_tokens" in learned.rename, {"max_tokens", "old max_tokens"}),
        (learned.tools == "text", {"tools"}),
        (not learned.stream, {"stream", "stream with tools"}),
        (learned.system == "folded", {"system"}),
        (learned.reasoning != "calls", set(REASONING)),
    ]
    return [str(cause) for is_learned, cause in causes if is_learned and not cause & parts]


def check_server(episode: RuledEpisode, server: RuledModel) -> None:
    assert server.violations == []
    steps = episode.requests(server)
    for requests in steps:
        n_failed = sum(each.cause == "failing" for each in requests)
        n_server_errors = sum(refusal.wording.status >= 500 for refusal in server.rules.refusals)
        n_contexts = sum(each.cause == "context" for each in requests)
        most = 1 + N_SHAPES + 1 + 1 + len(server.rules.refusals) + n_server_errors + 2 * n_failed + n_contexts
        assert len(requests) <= most, [each.cause for each in requests]
    for cause in {*server.rules.parts, "context"}:
        learning = [n for n, requests in enumerate(steps) if any(each.cause == cause for each in requests)]
        assert len(learning) <= 1 + len(server.rules.failing), (cause, learning)


def check_lessons(episode: RuledEpisode, server: RuledModel, name: str) -> None:
    n_anonymous = sum(refusal.wording in ANONYMOUS for refusal in server.rules.refusals)
    for key, learned in episode.lessons.items():
        if key.endpoint == name and n_anonymous < 2:
            assert unexplained(learned, server.rules.parts) == [], learned


@given(rules(), agents(), ENVS)
def test_no_episode_ends_as_an_error_where_a_shape_is_taken(drawn: Rules, agent: dict[str, Any], env: str) -> None:
    episode = asyncio.run(RuledEpisode(drawn).play(env=env, **agent))
    assert episode.trajectory.outcome is Outcome.SUCCESS, episode.trajectory.error_info
    (server,) = episode.servers
    check_server(episode, server)
    check_lessons(episode, server, "a")
    assert [*episode.unequal_chats()] == []
    assert not any(key in episode.stored for key in KEYS.values())


@given(rules(), rules(n_anonymous=1), st.integers(0, 3), st.sampled_from([*WRONG_KEYS, *MODELS, *POLICIES]), agents())
def test_another_endpoint_gets_nothing_that_only_the_first_one_understands(
    first: Rules, second: Rules, n_answers: int, end: Wording, agent: dict[str, Any]
) -> None:
    ending = msgspec.structs.replace(first, end=(n_answers, end), context=None)
    episode = asyncio.run(RuledEpisode(ending, second).play(**agent))
    assert episode.trajectory.outcome is Outcome.SUCCESS, episode.trajectory.error_info
    for server, name in zip(episode.servers, "ab", strict=True):
        check_server(episode, server)
        check_lessons(episode, server, name)
    for requests in episode.requests(episode.servers[0]):
        assert sum(each.cause == "end" for each in requests) <= 1
    assert [*episode.unequal_chats()] == []
    assert not any(key in episode.stored for key in KEYS.values())


async def test_failures_before_and_after_a_refusal_do_not_hide_it() -> None:
    parts: list[Part] = ["system", "stream", "tools"]
    wordings = [ANONYMOUS[0], PARTS["stream"][0], Wording("llama.cpp", 500, "tools param requires --jinja flag")]
    drawn = Rules(refusals=tuple(map(Refusal, parts, wordings)), failing=frozenset((7, 9)))
    episode = await RuledEpisode(drawn).play(format="tools", stream=True, temperature=0.7, max_tokens=64)
    (server,) = episode.servers
    check_server(episode, server)
    check_lessons(episode, server, "a")
    causes = [each.cause for each in episode.requests(server)[0]]
    assert causes[5:] == ["stream", "failing", "tools", "failing", "tools", "tools", "", "system"]


@pytest.mark.parametrize("wording", [WRONG_KEYS[0], MODELS[0], POLICIES[0]], ids=["key", "model", "policy"])
async def test_a_key_a_model_and_a_policy_end_the_request_at_once(wording: Wording) -> None:
    episode = await RuledEpisode(Rules(end=(0, wording), form="list"), Rules()).play(goal=1, format="auto", stream=True)
    assert episode.trajectory.outcome is Outcome.SUCCESS
    assert [len(server.received) for server in episode.servers] == [1, 1]
    assert episode.lessons == {}


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

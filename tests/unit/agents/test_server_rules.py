"""Whole conversations with model servers that draw their rules."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.profile import Capabilities
from runner.types import Outcome
from tests.support.ruled_episodes import KEYS, RuledEpisode
from tests.support.ruled_model import Context, Form, Reasoning, Refusal, RuledModel, Rules, Streaming
from tests.support.server_wordings import ANONYMOUS, CONTEXTS, MODELS, PARTS, POLICIES, WRONG_KEYS, Part, Wording

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

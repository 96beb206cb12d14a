"""Rounds in which the agent gave no action, told what its answer took, or streamed a text."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runner.envs.maze import Maze
from runner.episode.loop import EpisodeContext, EpisodeLoop
from runner.episode.step import StepRunner
from runner.episode.token_stream import EMIT_INTERVAL_S, TokenStream
from runner.episode.validation import resolve_action
from runner.errors import AgentFault
from runner.tracing import Tracer
from runner.types import (
    Action,
    Agent,
    Chat,
    Environment,
    EpisodeEvent,
    EpisodeInfo,
    InvalidAction,
    Limits,
    Outcome,
    SpanLevel,
    StreamDelta,
    TimestepPlayed,
    Tokens,
    TokensStreamed,
    ToolCall,
    ToolSchema,
    Trajectory,
    Usage,
)
from runner.util.clock import Clock
from tests.support.fakes import Counter, UpAgent
from tests.support.inference import EPOCH, header

UP = Action(text="up")
NONE = InvalidAction("hm", "up")
USAGE = Usage(
    endpoint="a",
    model="m",
    ttft_s=0.5,
    tokens_per_s=8.0,
    tokens=Tokens(prompt=3, completion=2),
    cost=0.25,
    warnings=("b: passed over",),
)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class Scripted(UpAgent):
    """Gives these answers one after the other, and then the first ones again; each takes a second and some text."""

    def __init__(self, *answers: Action | InvalidAction, usage: object = None, hands: Hands | None = None) -> None:
        super().__init__()
        self.last_usage = cast(Usage | None, usage)
        self._answers = answers
        self._asked = 0
        self._hands = hands or Hands()
        self._scope: EpisodeInfo | None = None

    def enter(self, scope: EpisodeInfo) -> None:
        self._scope = scope

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401 - the protocol's own type
        for piece in ("I ", "go ", "on") if self._scope else ():
            self._scope.stream(piece)  # type: ignore[union-attr]
            self._hands.at += 0.5 * EMIT_INTERVAL_S
        self._hands.at += 1
        answer = self._answers[self._asked % len(self._answers)]
        self._asked += 1
        return [[*observation]], answer


class EpisodeFactory:
    """One agent and one environment, kept to be looked at."""

    tracing_level: SpanLevel = "off"

    def __init__(self, agent: Agent, limits: Limits | None = None, goal: int = 3) -> None:
        self.agent, self.environment = agent, Counter(goal=goal)
        self.limits = limits or Limits()

    def build_environment(self) -> Environment:
        return self.environment

    def build_agent(self) -> Agent:
        return self.agent


def rounds_of(agent: Agent, hands: Hands | None = None) -> StepRunner:
    now = hands or Hands()
    environment = Counter()
    environment.reset()
    return StepRunner(environment, agent, Tracer("off"), now, TokenStream(now, lambda step, text: None))


async def play(builds: EpisodeFactory, hands: Hands | None = None) -> tuple[Trajectory, list[EpisodeEvent]]:
    events: list[EpisodeEvent] = []
    clock = Clock(monotonic=hands or Hands(), now=lambda: EPOCH)
    played = await EpisodeLoop(builds, {}, EpisodeContext(header(), emit=events.append, clock=clock)).run()
    return played, events


async def test_a_reply_that_is_no_action_never_reaches_the_environment() -> None:
    hands = Hands()
    step_runner = rounds_of(Scripted(NONE, hands=hands), hands)
    step = await step_runner.run_step(0, [])
    assert step.observation == [{"role": "user", "content": "Invalid action. Expected up."}]
    assert (step.action, step.valid, step.reward, step.done) == (Action(text="hm"), False, 0.0, False)
    assert (step.model_s, step.env_s) == (1.0, 0.0)
    assert isinstance(step_runner.environment, Counter)
    assert step_runner.environment.count == 0


async def test_only_replies_in_a_row_are_counted() -> None:
    step_runner = rounds_of(Scripted(NONE, NONE, UP, Action(text="jump"), NONE))
    counted = []
    for index in range(5):
        await step_runner.run_step(index, [])
        counted.append(step_runner.unparsed)
    assert counted == [1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("limits", "outcome", "n_rounds"),
    [
        (Limits(max_unparsed=2), Outcome.FAILURE, 2),
        (Limits(max_unparsed=1), Outcome.FAILURE, 1),
        (Limits(max_unparsed=9, max_rounds=4), Outcome.TRUNCATED, 4),
    ],
)
async def test_a_streak_of_them_ends_the_episode(limits: Limits, outcome: Outcome, n_rounds: int) -> None:
    played, _ = await play(EpisodeFactory(Scripted(NONE), limits))
    assert (played.outcome, played.success, len(played.timesteps)) == (outcome, False, n_rounds)
    assert played.error_info is None


@pytest.mark.parametrize(
    ("called", "valid"),
    [(("move", "fly"), True), (("fly", "move"), False), (("move",), True)],
)
async def test_the_tool_call_that_is_played_has_to_fit(called: tuple[str, ...], valid: bool) -> None:
    calls = [ToolCall(name, name, '{"direction": "up"}') for name in called]
    environment = Maze()
    environment.reset()
    assert await resolve_action(environment, Action(tool_calls=calls), environment.get_tool_schemas()) == (
        Action(tool_calls=calls),
        valid,
    )


async def test_an_action_in_between_lets_the_episode_go_on() -> None:
    played, _ = await play(EpisodeFactory(Scripted(NONE, UP), Limits(max_unparsed=2)))
    assert played.outcome is Outcome.SUCCESS
    assert [step.valid for step in played.timesteps] == [False, True] * 3


@pytest.mark.parametrize("answer", [InvalidAction(cast(str, 1), "up"), InvalidAction("hm", cast(str, None))])
async def test_what_was_said_has_to_be_a_text(answer: InvalidAction) -> None:
    with pytest.raises(AgentFault, match="act should return"):
        await rounds_of(Scripted(answer)).run_step(0, [])


@pytest.mark.parametrize("answer", [UP, NONE])
async def test_what_an_answer_took_is_on_its_step(answer: Action | InvalidAction) -> None:
    step = await rounds_of(Scripted(answer, usage=USAGE)).run_step(0, [])
    told = Usage(
        endpoint=step.endpoint or "",
        model=step.model or "",
        ttft_s=step.ttft_s,
        tokens_per_s=step.tokens_per_s,
        tokens=step.tokens,
        cost=step.cost,
        warnings=step.warnings,
    )
    assert told == USAGE


@pytest.mark.parametrize("agent", [Scripted(UP), UpAgent()])
async def test_without_a_model_nothing_is_told(agent: Agent) -> None:
    step = await rounds_of(agent).run_step(0, [])
    assert (step.endpoint, step.model, step.tokens, step.cost, step.warnings) == (None, None, None, None, ())


async def test_what_an_answer_took_has_to_be_a_usage() -> None:
    with pytest.raises(AgentFault, match="last_usage should be"):
        await rounds_of(Scripted(UP, usage={"endpoint": "a"})).run_step(0, [])


def test_pieces_are_told_together() -> None:
    hands = Hands()
    told: list[tuple[int, str]] = []
    stream = TokenStream(hands, lambda step, piece: told.append((step, piece.text)))
    stream.start_step(4)
    stream.add("a")
    assert told == [(4, "a")]
    for piece in "bcd":
        hands.at += 0.4 * EMIT_INTERVAL_S
        stream.add(piece)
    assert told[1:] == [(4, "bcd")]
    stream.add("e")
    assert told[2:] == []
    stream.flush()
    stream.flush()
    assert told[2:] == [(4, "e")]


def test_what_a_round_did_not_tell_is_not_told_in_the_next() -> None:
    hands = Hands()
    told: list[tuple[int, str]] = []
    stream = TokenStream(hands, lambda step, piece: told.append((step, piece.text)))
    stream.add("a")
    stream.add("lost")
    stream.start_step(1)
    stream.flush()
    stream.add("b")
    stream.flush()
    assert told == [(0, "a"), (1, "b")]


def test_a_restart_takes_back_what_was_told_and_drops_what_was_not() -> None:
    hands = Hands()
    told: list[tuple[int, str]] = []
    stream = TokenStream(hands, lambda step, piece: told.append((step, piece.text)))
    stream.start_step(2)
    stream.add("")
    assert told == []
    for piece in ("a", "lost", "", ""):
        stream.add(piece)
    hands.at += 2 * EMIT_INTERVAL_S
    stream.add("b")
    assert told == [(2, "a"), (2, ""), (2, "b")]


def test_each_part_of_an_answer_is_told_by_itself() -> None:
    told: list[StreamDelta] = []
    hands = Hands()
    stream = TokenStream(hands, lambda step, piece: told.append(piece))
    stream.add(StreamDelta(endpoint="a", model="m"))
    stream.add(StreamDelta(text="hm", part="reasoning", n=1, ttft_s=0.5))
    stream.add(StreamDelta(part="call", tool="move", n=1, ttft_s=0.5))
    for text in ("one", "two"):
        stream.add(StreamDelta(text=text, n=1, ttft_s=0.5))
        stream.add(StreamDelta(text=text, part="call", n=1, ttft_s=0.5))
    stream.add(StreamDelta(failure="b: away"))
    assert told == [
        StreamDelta(endpoint="a", model="m"),
        StreamDelta(text="hm", part="reasoning", n=1, ttft_s=0.5),
        StreamDelta(text="onetwo", part="call", tool="move", n=3, ttft_s=0.5),
        StreamDelta(text="onetwo", n=2, ttft_s=0.5),
        StreamDelta(failure="b: away"),
    ]


def test_a_failure_takes_back_only_what_was_told() -> None:
    told: list[StreamDelta] = []
    stream = TokenStream(Hands(), lambda step, piece: told.append(piece))
    failure = StreamDelta(failure="a: away", restart=True)
    for piece in (failure, StreamDelta(text="x", n=1), failure, failure):
        stream.add(piece)
    assert [(piece.text, piece.restart) for piece in told] == [("", False), ("x", False), ("", True), ("", False)]


async def test_tokens_are_items_of_the_round_that_is_played() -> None:
    hands = Hands()
    _, events = await play(EpisodeFactory(Scripted(UP, hands=hands), goal=2), hands)
    shown = [
        (event.step, event.delta.text) if isinstance(event, TokensStreamed) else event.step.index
        for event in events
        if isinstance(event, TokensStreamed | TimestepPlayed)
    ]
    assert shown == [(0, "I "), (0, "go on"), 0, (1, "I go on"), 1]
    assert [event.seq for event in events] == list(range(len(events)))

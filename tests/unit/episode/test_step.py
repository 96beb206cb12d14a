"""Steps whose agent returns no action, reports its usage or streams its reply."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from runner.envs.maze import Maze
from runner.episode.loop import (
    EMIT_INTERVAL_S,
    EpisodeContext,
    EpisodeLoop,
    EpisodeTrace,
    StepPlayer,
    TokenStream,
    step_phases,
)
from runner.episode.validation import resolve_action
from runner.errors import AgentFault
from runner.tracing import Tracer
from runner.types import (
    Action,
    Agent,
    AnswerTimes,
    Chat,
    Environment,
    EpisodeEvent,
    EpisodeInfo,
    InvalidAction,
    Limits,
    Outcome,
    Phases,
    SpanLevel,
    StepResult,
    StreamDelta,
    TimeStep,
    TimestepPlayed,
    Tokens,
    TokensStreamed,
    ToolCall,
    ToolSchema,
    Trajectory,
    Usage,
    count_models,
    fallback_endpoints,
)
from runner.util.clock import Clock
from tests.support.fakes import Counter, UpAgent
from tests.support.inference import EPOCH, episode_header
from tests.support.manual_clock import ManualClock

UP = Action(text="up")
UNPARSED = InvalidAction("hm", "up")
USAGE = Usage(
    endpoint="a",
    model="m",
    ttft_s=0.5,
    tokens_per_s=8.0,
    tokens=Tokens(prompt=3, completion=2),
    cost=0.25,
    warnings=("b: passed over",),
)


class Scripted(UpAgent):
    """Cycles through its answers; each takes a second, plus the time of three streamed deltas."""

    def __init__(
        self, *answers: Action | InvalidAction, usage: object = None, clock: ManualClock | None = None
    ) -> None:
        super().__init__()
        self.last_usage = cast(Usage | None, usage)
        self._answers = answers
        self._n_acts = 0
        self._clock = clock or ManualClock()
        self._info: EpisodeInfo | None = None

    def enter(self, info: EpisodeInfo) -> None:
        self._info = info

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401 - as in the protocol
        for delta in ("I ", "go ", "on") if self._info else ():
            self._info.stream(delta)  # type: ignore[union-attr]
            self._clock.now += 0.5 * EMIT_INTERVAL_S
        self._clock.now += 1
        answer = self._answers[self._n_acts % len(self._answers)]
        self._n_acts += 1
        return [[*observation]], answer


class EpisodeFactory:
    """Holds one agent and one environment, so that tests can inspect them."""

    tracing_level: SpanLevel = "off"
    records_world: bool = True

    def __init__(self, agent: Agent, limits: Limits | None = None, goal: int = 3) -> None:
        self.agent, self.environment = agent, Counter(goal=goal)
        self.limits = limits or Limits()

    def build_environment(self) -> Environment:
        return self.environment

    def build_agent(self) -> Agent:
        return self.agent


def make_step_runner(agent: Agent, clock: ManualClock | None = None) -> StepPlayer:
    clock = clock or ManualClock()
    environment = Counter()
    environment.reset()
    return StepPlayer(
        environment,
        agent,
        EpisodeTrace(Tracer("off"), episode_header(), {}),
        clock,
        TokenStream(clock, lambda step, text: None),
    )


async def run_episode(
    factory: EpisodeFactory, clock: ManualClock | None = None
) -> tuple[Trajectory, list[EpisodeEvent]]:
    events: list[EpisodeEvent] = []
    context = EpisodeContext(
        episode_header(), emit=events.append, clock=Clock(monotonic=clock or ManualClock(), now=lambda: EPOCH)
    )
    trajectory = await EpisodeLoop(factory, {}, context).run()
    return trajectory, events


async def test_an_unparsed_reply_never_reaches_the_environment() -> None:
    clock = ManualClock()
    step_runner = make_step_runner(Scripted(UNPARSED, clock=clock), clock)
    step = await step_runner.run_step(0, [])
    assert step.observation == [{"role": "user", "content": "Invalid action. Expected up."}]
    assert (step.action, step.valid, step.reward, step.done) == (Action(text="hm", valid=False), False, 0.0, False)
    assert (step.model_s, step.env_s) == (1.0, 0.0)
    assert isinstance(step_runner.environment, Counter)
    assert step_runner.environment.count == 0


async def test_consecutive_unparsed_replies_are_counted() -> None:
    step_runner = make_step_runner(Scripted(UNPARSED, UNPARSED, UP, Action(text="jump"), UNPARSED))
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
async def test_too_many_consecutive_unparsed_replies_end_the_episode(
    limits: Limits, outcome: Outcome, n_rounds: int
) -> None:
    trajectory, _ = await run_episode(EpisodeFactory(Scripted(UNPARSED), limits))
    assert (trajectory.outcome, trajectory.success, len(trajectory.timesteps)) == (outcome, False, n_rounds)
    assert trajectory.error_info is None


@pytest.mark.parametrize(("called", "valid"), [(("move", "fly"), True), (("fly", "move"), False), (("move",), True)])
async def test_an_action_is_valid_if_its_first_tool_call_fits_a_schema(called: tuple[str, ...], valid: bool) -> None:
    calls = [ToolCall(name, name, '{"direction": "up"}') for name in called]
    environment = Maze()
    environment.reset()
    resolved = await resolve_action(environment, Action(tool_calls=calls), environment.get_tool_schemas())
    assert resolved == Action(tool_calls=calls, valid=valid)


def move(**arguments: object) -> Action:
    return Action(tool_calls=[ToolCall("c", "move", msgspec.json.encode(arguments).decode())])


class MazeFactory(EpisodeFactory):
    def build_environment(self) -> Environment:
        return Maze()


@pytest.mark.parametrize("arguments", [{"direction": "UP"}, {"direction": "up", "speed": 2}, {"direction": 1}, {}])
async def test_calls_outside_their_schema_end_the_episode_like_replies_without_an_action(
    arguments: dict[str, object],
) -> None:
    trajectory, _ = await run_episode(MazeFactory(Scripted(move(**arguments))))
    assert (trajectory.outcome, len(trajectory.timesteps)) == (Outcome.FAILURE, Limits().max_unparsed)
    for step in trajectory.timesteps:
        assert (step.valid, step.refused) == (False, False)
        assert 'one of "left", "right", "up", "down"' in step.observation[0]["content"]


class Refusing(Counter):
    """Refuses every second call, or reports something else."""

    def __init__(self, *, reports: object = "refused") -> None:
        super().__init__(goal=99)
        self.rejection: object = None
        self._reports = reports

    def step(self, action: Action) -> StepResult:
        self.rejection = None if self.rejection else self._reports
        return super().step(action)


class RefusingFactory(EpisodeFactory):
    def __init__(self, agent: Agent, reports: object) -> None:
        super().__init__(agent, Limits(max_rounds=6, max_unparsed=1))
        self.environment = Refusing(reports=reports)


@pytest.mark.parametrize("answer", [UP, Action(tool_calls=[ToolCall("c", "up", "{}")], refused=True, valid=False)])
async def test_an_environment_may_report_what_it_refuses(answer: Action) -> None:
    trajectory, _ = await run_episode(RefusingFactory(Scripted(answer), "refused"))
    assert trajectory.outcome is Outcome.TRUNCATED
    assert [(step.valid, step.refused) for step in trajectory.timesteps] == [(True, True), (True, False)] * 3
    assert b"refused" not in msgspec.json.encode(trajectory.timesteps[1].action)


async def test_what_an_environment_reports_as_invalid_is_not_valid() -> None:
    trajectory, _ = await run_episode(RefusingFactory(Scripted(UP), "invalid"))
    assert [(step.valid, step.refused) for step in trajectory.timesteps] == [(False, False), (True, False)] * 3


async def test_what_an_environment_reports_is_checked() -> None:
    trajectory, _ = await run_episode(RefusingFactory(Scripted(UP), ["no"]))
    assert trajectory.outcome is Outcome.ERROR
    assert trajectory.error_info is not None
    assert "rejection should be" in trajectory.error_info.message


@pytest.mark.parametrize("answer", [InvalidAction(cast(str, 1), "up"), InvalidAction("hm", cast(str, None))])
async def test_the_fields_of_an_invalid_action_must_be_text(answer: InvalidAction) -> None:
    with pytest.raises(AgentFault, match="act should return"):
        await make_step_runner(Scripted(answer)).run_step(0, [])


@pytest.mark.parametrize("answer", [UP, UNPARSED])
async def test_a_step_records_the_usage_of_its_reply(answer: Action | InvalidAction) -> None:
    step = await make_step_runner(Scripted(answer, usage=USAGE)).run_step(0, [])
    names = ("endpoint", "model", "ttft_s", "tokens_per_s", "tokens", "cost", "warnings")
    assert [getattr(step, name) for name in names] == [getattr(USAGE, name) for name in names]


@pytest.mark.parametrize("agent", [Scripted(UP), UpAgent()])
async def test_a_step_without_a_model_has_no_usage(agent: Agent) -> None:
    step = await make_step_runner(agent).run_step(0, [])
    assert (step.endpoint, step.model, step.tokens, step.cost, step.warnings) == (None, None, None, None, ())


async def test_last_usage_must_be_a_usage() -> None:
    with pytest.raises(AgentFault, match="last_usage should be"):
        await make_step_runner(Scripted(UP, usage={"endpoint": "a"})).run_step(0, [])


def new_stream() -> tuple[ManualClock, list[tuple[int, str]], TokenStream]:
    clock, emitted = ManualClock(), list[tuple[int, str]]()
    return clock, emitted, TokenStream(clock, lambda step, delta: emitted.append((step, delta.text)))


def test_deltas_within_an_interval_are_emitted_together() -> None:
    clock, emitted, stream = new_stream()
    stream.start_step(4)
    stream.add("a")
    assert emitted == [(4, "a")]
    for delta in "bcd":
        clock.now += 0.4 * EMIT_INTERVAL_S
        stream.add(delta)
    assert emitted[1:] == [(4, "bcd")]
    stream.add("e")
    assert emitted[2:] == []
    stream.flush()
    stream.flush()
    assert emitted[2:] == [(4, "e")]


def test_pending_deltas_are_discarded_when_the_next_step_starts() -> None:
    _, emitted, stream = new_stream()
    stream.add("a")
    stream.add("lost")
    stream.start_step(1)
    stream.flush()
    stream.add("b")
    stream.flush()
    assert emitted == [(0, "a"), (1, "b")]


def test_a_restart_is_emitted_and_discards_pending_deltas() -> None:
    clock, emitted, stream = new_stream()
    stream.start_step(2)
    stream.add("")
    assert emitted == []
    for delta in ("a", "lost", "", ""):
        stream.add(delta)
    clock.now += 2 * EMIT_INTERVAL_S
    stream.add("b")
    assert emitted == [(2, "a"), (2, ""), (2, "b")]


def test_each_part_of_a_reply_is_emitted_separately() -> None:
    emitted: list[StreamDelta] = []
    clock = ManualClock()
    stream = TokenStream(clock, lambda step, delta: emitted.append(delta))
    stream.add(StreamDelta(endpoint="a", model="m"))
    stream.add(StreamDelta(text="hm", part="reasoning", n=1, ttft_s=0.5))
    stream.add(StreamDelta(part="call", tool="move", n=1, ttft_s=0.5))
    for text in ("one", "two"):
        stream.add(StreamDelta(text=text, n=1, ttft_s=0.5))
        stream.add(StreamDelta(text=text, part="call", n=1, ttft_s=0.5))
    stream.add(StreamDelta(failure="b: away"))
    assert emitted == [
        StreamDelta(endpoint="a", model="m"),
        StreamDelta(text="hm", part="reasoning", n=1, ttft_s=0.5),
        StreamDelta(text="onetwo", part="call", tool="move", n=3, ttft_s=0.5),
        StreamDelta(text="onetwo", n=2, ttft_s=0.5),
        StreamDelta(failure="b: away"),
    ]


def test_a_failure_restarts_only_emitted_text() -> None:
    emitted: list[StreamDelta] = []
    stream = TokenStream(ManualClock(), lambda step, delta: emitted.append(delta))
    failure = StreamDelta(failure="a: away", restart=True)
    for delta in (failure, StreamDelta(text="x", n=1), failure, failure):
        stream.add(delta)
    assert [(delta.text, delta.restart) for delta in emitted] == [("", False), ("x", False), ("", True), ("", False)]


async def test_streamed_tokens_are_events_of_the_current_step() -> None:
    clock = ManualClock()
    _, events = await run_episode(EpisodeFactory(Scripted(UP, clock=clock), goal=2), clock)
    shown = [
        (event.step, event.delta.text) if isinstance(event, TokensStreamed) else event.step.index
        for event in events
        if isinstance(event, TokensStreamed | TimestepPlayed)
    ]
    assert shown == [(0, "I "), (0, "go on"), 0, (1, "I go on"), 1]
    assert [event.seq for event in events] == list(range(len(events)))


def timed_step() -> TimeStep:
    return TimeStep(index=0, chats=[], action=Action(), observation=[], reward=0.0, done=False, model_s=4.0, env_s=1.0)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Phases(env=1.0, own=5.0)),
        (Usage(endpoint="a", model="m"), Phases(model=4.0, env=1.0, own=1.0)),
        (
            Usage(endpoint="a", model="m", times=AnswerTimes(total_s=3.0, queue_s=1.0, decode_s=2.0, about=True)),
            Phases(queue=1.0, decode=2.0, model=3.0, env=1.0, own=2.0, about=True),
        ),
    ],
)
def test_the_wall_time_of_a_step_is_split(usage: Usage | None, expected: Phases) -> None:
    phases = step_phases(6.0, timed_step(), usage)
    assert phases == expected
    assert phases.model + phases.env + phases.own == 6.0


FIRST = Usage(
    endpoint="a",
    model="m",
    ttft_s=0.5,
    tokens_per_s=10.0,
    tokens=Tokens(100, 10),
    cost=1.0,
    warnings=("a: slow",),
    shape="folded system",
    times=AnswerTimes(total_s=2.0, queue_s=1.0, decode_s=1.0),
)


def test_the_usage_of_a_step_with_two_answers_is_their_sum() -> None:
    second = msgspec.structs.replace(FIRST, endpoint="b", tokens_per_s=5.0, shape="tools as text", ttft_s=9.0)
    assert FIRST + second == Usage(
        endpoint="b",
        model="m",
        ttft_s=0.5,
        tokens_per_s=20 / 3,
        tokens=Tokens(200, 20),
        cost=2.0,
        warnings=("a: slow", "a: slow"),
        shape="tools as text, folded system",
        times=AnswerTimes(total_s=4.0, queue_s=2.0, decode_s=2.0),
    )
    unknown = FIRST + Usage(endpoint="c", model="n")
    assert (unknown.endpoint, unknown.model, unknown.tokens) == ("c", "m + n", Tokens(100, 10))
    assert (unknown.cost, unknown.times, unknown.tokens_per_s) == (None, None, None)


def test_the_usage_of_answers_by_several_models_names_them_all_and_the_fallback() -> None:
    own = Usage(endpoint="a", model="m")
    fallback = Usage(endpoint="b", model="k", warnings=("a: HTTP 503",))
    for total in (own + fallback, fallback + own, own + fallback + own, fallback + own + fallback):
        assert count_models([(total.endpoint, total.model)]) == {"k": 1, "m": 1}
        assert fallback_endpoints([(total.endpoint, total.warnings)]) == "b"


def test_answers_at_the_same_time_take_no_longer_than_their_step() -> None:
    phases = step_phases(6.0, timed_step(), FIRST + FIRST + FIRST)
    assert phases == Phases(model=4.0, env=1.0, own=1.0)

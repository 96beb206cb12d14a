"""The episodes of a worker, in this process, reported as the runner does here, and the thread of an episode."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec
import pytest

from runner.envs.http import client
from runner.episode.factory import EpisodeContext
from runner.errors import ServerGone
from runner.events.live import LiveItem, SpanClosed, Timestep, TokenText
from runner.plugins import Plugin
from runner.store.journal import stored_step
from runner.store.parts import Decided, Ended, Free, Paused, Reset, Started, Step
from runner.store.parts import Tokens as TokensPart
from runner.tracing import PerfettoFile, SpanList, Tracer
from runner.types import (
    Action,
    Chat,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodeInfo,
    Limits,
    Outcome,
    Span,
    SpanLevel,
    StreamDelta,
    TimestepPlayed,
    ToolSchema,
    Usage,
)
from runner.util.clock import Clock
from runner.util.safe_values import encode
from runner.worker.frames import Command, Configure, Play, Reply, Request, Watch, WorkerFrame
from runner.worker.runner_setup import RunnerSetup
from runner.worker.worker_episodes import EpisodeThread, WorkerEpisodes
from tests.conftest import Install
from tests.support.batches import make_setup
from tests.support.episodes import episode_header
from tests.support.fakes import AsyncUpAgent, Counter, Gated, UpAgent
from tests.support.perfetto import flatten, read_slices
from tests.support.worker_frames import RecordingLink, play_frame

FROZEN = Clock(lambda: 5.0, lambda: datetime(2026, 3, 4, tzinfo=UTC))


class Gone(Counter):
    def reset(self, **kwargs: Any) -> Chat:  # noqa: ANN401
        raise ServerGone("refused \ud800", timed_out=True)


class OddNames(Counter):
    def get_episode_id(self) -> str:
        return "\ud800"


class Traced(Counter):
    """Its steps wait until two episodes are in one; each step has a span of its own."""

    barrier: ClassVar[threading.Barrier] = threading.Barrier(2)

    def step(self, action: Action) -> Any:  # noqa: ANN401
        self.barrier.wait(60)
        return super().step(action)


class OddUsageAgent(AsyncUpAgent):
    last_usage = Usage(endpoint="\ud800", model="m", warnings=("\ud801",))


class StreamingAgent(UpAgent):
    """Streams ten texts, a restart and half a character in each step."""

    def enter(self, episode: EpisodeInfo) -> None:
        self._stream = episode.stream

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401
        for number in range(10):
            self._stream(StreamDelta(endpoint=f"e{number}"))
        for part in ("text", "reasoning"):
            self._stream(StreamDelta(text="a", part=part, n=1))
        self._stream(StreamDelta(text="\ud800", part="call", n=1))
        return super().act(observation, tool_schemas)


imported = threading.Event()


def __getattr__(name: str) -> object:
    if name == "LateAgent":
        imported.wait(60)
        return UpAgent
    raise AttributeError(name)


class StoringLink(RecordingLink):
    """Stores each ended episode as the driver does in its own process; the first one takes until ``stored``."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = threading.Event()
        self._n_ended = itertools.count()

    def send(self, frame: WorkerFrame) -> None:
        super().send(frame)
        if isinstance(frame, Free) and next(self._n_ended) == 0:
            assert self.stored.wait(60)


@pytest.fixture
def link(install: Install) -> Iterator[RecordingLink]:
    fakes = "tests.support.fakes"
    envs = ("Counter", "AllAsync", "Gated", "AsyncHanging", "SlowCleanup", "Panicking", "Evaluated")
    agents = {name: f"{fakes}:{name}" for name in ("UpAgent", "AsyncUpAgent")}
    here = {name: f"{__name__}:{name}" for name in ("Gone", "OddNames", "Traced")}
    mine = {name: f"{__name__}:{name}" for name in ("OddUsageAgent", "StreamingAgent", "LateAgent")}
    install({name: f"{fakes}:{name}" for name in envs} | here, agents | mine)
    yield RecordingLink()
    client.use_desk(client.PLACES)


def make_episodes(
    link: RecordingLink,
    env: str,
    agent: str,
    clock: Clock | None = None,
    **settings: Any,  # noqa: ANN401
) -> WorkerEpisodes:
    configure = Configure(setup=make_setup(env, agent, **settings))
    return WorkerEpisodes(link, configure, clock, lambda: 7)


def record_here(
    setup: RunnerSetup, header: EpisodeHeader
) -> tuple[list[EpisodeEvent], list[int], list[bytes], list[Span]]:
    """Play an episode without a worker.

    Returns its events, the number of its spans that were closed at each event, its encoded steps and its spans.
    """
    events: list[EpisodeEvent] = []
    n_closed: list[int] = []
    spans = SpanList()

    def note(event: EpisodeEvent) -> None:
        events.append(event)
        n_closed.append(len(spans.spans))

    context = EpisodeContext(
        header, tracer=Tracer(setup.tracing, (spans,), "slot 0", lambda: 7), emit=note, clock=FROZEN
    )
    reset_kwargs = {"task_index": header.task_index, "seed": header.seed}
    asyncio.run(setup.build_factory(None).play_episode(reset_kwargs, context=context))
    encoded = [encode(stored_step(event.step, 0)) for event in events if isinstance(event, TimestepPlayed)]
    return events, n_closed, encoded, spans.spans


@pytest.mark.parametrize("tracing", ["full", "episode", "off"])
@pytest.mark.parametrize(
    ("env", "agent"), [("Maze", "oracle"), ("Evaluated", "UpAgent"), ("Panicking", "AsyncUpAgent")]
)
def test_an_episode_is_reported_as_it_is_recorded_here(
    env: str, agent: str, tracing: SpanLevel, link: RecordingLink
) -> None:
    header = episode_header(task_index=3)
    episodes = make_episodes(link, env, agent, FROZEN, tracing=tracing)
    episodes.handle(play_frame(header))
    assert link.reader.wait_for(Free).problem is None
    setup = make_setup(env, agent, tracing=tracing)
    events, n_closed, steps, spans = record_here(setup, header)
    played, end = link.reader.of(Step), link.reader.of(Ended)[0]
    trajectory = events[-1].trajectory if isinstance(events[-1], EpisodeEnded) else pytest.fail(repr(events))
    assert [frame.data for frame in played] == steps
    # the spans of a step follow it, those of the end precede it
    numbers = [number + n for number, n in enumerate([0, *n_closed[:-2], n_closed[-1]])]
    assert [frame.seq for frame in played] == numbers[1:-1]
    assert (end.seq, end.outcome, end.success) == (numbers[-1], trajectory.outcome, trajectory.success)
    assert [frame.summary.reward for frame in played] == [step.reward for step in trajectory.timesteps]
    assert end.evaluation == (encode({"count": 3, "notes": ["fine"]}) if env == "Evaluated" else None)
    parts = [*(frame.traces for frame in link.reader.of(Reset)), *(frame.traces for frame in played)]
    sent = [span for part in (*parts, end.traces) for span in msgspec.json.decode(part.spans, type=list[Span])]
    assert sorted(sent, key=lambda span: span.id) == sorted(spans, key=lambda span: span.id)
    assert sum(part.n_spans for part in (*parts, end.traces)) == len(spans)
    if tracing == "full" and played:
        assert parts[-1].open_spans.count(b'"name":"episode"') == 1
    assert [type(frame) for frame in link.reader.frames if not isinstance(frame, Step | Reset)] == [
        Started,
        Decided,
        Ended,
        Free,
    ]


def test_the_packets_of_episodes_have_their_spans(link: RecordingLink, tmp_path: Path) -> None:
    trace_file, episodes = (
        PerfettoFile(tmp_path / "batch.pftrace"),
        WorkerEpisodes(link, Configure(setup=make_setup("Maze", "oracle"))),
    )
    for _ in range(2):
        episodes.handle(play_frame(episode_header(boot=trace_file.boot)))
        assert link.reader.wait_for(Free).problem is None
    ends = link.reader.of(Ended)
    parts = [frame.traces for frame in link.reader.of(Step)] + [end.traces for end in ends]
    parts += [frame.traces for frame in link.reader.of(Reset)]
    for end in ends:
        trace_file.append("slot 0", end.packets, end.n_lanes)
    spans = [span for part in parts for span in msgspec.json.decode(part.spans, type=list[Span])]
    (roots,) = read_slices(trace_file.path).values()
    assert [each.name for each in roots] == ["episode"] * 2
    shown = {(each.name, each.start_ns, each.end_ns, *sorted(each.attributes)) for each in flatten(roots)}
    assert shown == {(span.name, span.start_ns, span.end_ns, *sorted(span.attributes)) for span in spans}
    assert len(flatten(roots)) == len(spans)


def test_sync_steps_of_async_agents_run_side_by_side_and_their_spans_nest(link: RecordingLink) -> None:
    episodes = make_episodes(link, "Traced", "AsyncUpAgent")
    for _ in range(2):
        episodes.handle(play_frame())
    for _ in range(2):
        assert link.reader.wait_for(Free).problem is None
    spans = msgspec.json.decode(link.reader.of(Step)[-1].traces.spans, type=list[Span])
    names = {span.name: span for span in spans}
    assert names["env.step"].parent == names["timestep"].id
    assert {frame.outcome for frame in link.reader.of(Ended)} == {Outcome.SUCCESS}


@pytest.mark.parametrize("agent", ["UpAgent", "AsyncUpAgent"])
def test_commands_pause_step_resume_and_cancel(agent: str, link: RecordingLink) -> None:
    episodes = make_episodes(link, "Counter", agent)
    play = play_frame(paused=True)
    episodes.handle(play)

    def command(name: Any) -> None:  # noqa: ANN401
        episodes.handle(Command(episode_id=play.header.episode_id, name=name, outcome=Outcome.INTERRUPTED))

    assert not link.reader.wait_for(Paused).resumed
    assert link.reader.of(Step) == []
    command("step")
    assert link.reader.wait_for(Paused).resumed
    assert link.reader.wait_for(Step).summary.index == 0
    assert not link.reader.wait_for(Paused).resumed
    command("resume")
    assert link.reader.wait_for(Paused).paused_s > 0
    link.reader.wait_for(Free)
    assert len(link.reader.of(Step)) == 3
    play = play_frame(paused=True)
    episodes.handle(play)
    link.reader.wait_for(Paused)
    command("cancel")
    assert link.reader.wait_for(Ended).outcome == Outcome.INTERRUPTED
    command("pause")  # of an episode that has ended
    link.reader.wait_for(Free)


@pytest.mark.parametrize("agent", ["UpAgent", "AsyncUpAgent"])
def test_stop_cancels_an_await_that_never_ends(agent: str, link: RecordingLink) -> None:
    episodes = make_episodes(link, "AsyncHanging", agent)
    first, second = play_frame(), play_frame()
    episodes.handle(first)
    link.reader.wait_for(Reset)
    for play in (first, second):
        if play is second:
            episodes.handle(second)
        for name in ("cancel", "stop"):
            episodes.handle(Command(episode_id=play.header.episode_id, name=name))
        assert link.reader.wait_for(Ended).outcome == Outcome.CANCELLED
        link.reader.wait_for(Free)


def test_the_time_limit_holds_when_a_sync_step_returns(link: RecordingLink) -> None:
    Gated.reset_gate()
    episodes = make_episodes(link, "Gated", "AsyncUpAgent", limits=Limits(max_duration_s=0.05))
    episodes.handle(play_frame())
    assert Gated.entered.acquire(timeout=60)
    threading.Event().wait(0.1)  # longer than the limit
    assert not any(isinstance(frame, Ended) for frame in link.reader.frames)
    Gated.gate.release()
    assert link.reader.wait_for(Ended).outcome == Outcome.TIMEOUT
    assert link.reader.wait_for(Free).problem is None


def test_close_cancels_and_cleans_up(link: RecordingLink) -> None:
    episodes = make_episodes(link, "AsyncHanging", "AsyncUpAgent")
    Counter.closed.clear()
    episodes.handle(play_frame())
    link.reader.wait_for(Reset)
    episodes.close()
    assert Counter.closed == ["AsyncHanging"]


def test_the_outcome_is_reported_before_the_cleanup(link: RecordingLink) -> None:
    from tests.support.fakes import SlowCleanup

    SlowCleanup.gate.clear()
    make_episodes(link, "SlowCleanup", "AsyncUpAgent").handle(play_frame())
    assert link.reader.wait_for(Decided).outcome == Outcome.SUCCESS
    assert link.reader.of(Ended) == []
    SlowCleanup.gate.set()
    link.reader.wait_for(Free)


def test_an_engine_that_cannot_build_an_episode_says_why_for_each(link: RecordingLink) -> None:
    setup = RunnerSetup(env=Plugin("Nothing", "no_such_module:Thing"), agent=Plugin("up", f"{__name__}:OddUsageAgent"))
    episodes = WorkerEpisodes(link, Configure(setup=setup))
    for _ in range(2):
        episodes.handle(play_frame())
        problem = link.reader.wait_for(Free).problem or ""
        assert problem.startswith("config_error: Nothing is registered as no_such_module:Thing but cannot be")


def test_a_lost_server_is_reported_before_the_end(link: RecordingLink) -> None:
    make_episodes(link, "Gone", "AsyncUpAgent").handle(play_frame())
    decided = link.reader.wait_for(Decided)
    assert (decided.gone, decided.timed_out, decided.shortage) == ("refused \\ud800", True, None)
    assert link.reader.wait_for(Ended).outcome == Outcome.ERROR


def test_texts_that_are_no_unicode_become_escapes(link: RecordingLink) -> None:
    make_episodes(link, "OddNames", "OddUsageAgent").handle(play_frame())
    assert link.reader.wait_for(Reset).env_episode_id == "\\ud800"
    step = link.reader.wait_for(Step)
    assert (step.summary.endpoint, step.summary.warnings) == ("\\ud800", ("\\ud801",))
    assert msgspec.json.decode(step.data)["endpoint"] == "\\ud800"


REQUESTS = [(step, f"e{number}", "") for step in range(3) for number in range(10)]


def test_texts_are_sent_while_they_are_watched_and_requests_always(link: RecordingLink) -> None:
    episodes = make_episodes(link, "Counter", "StreamingAgent", FROZEN)
    episodes.handle(Watch(steps=True, tokens=False))
    episodes.handle(play_frame())
    link.reader.wait_for(Free)
    streamed = [msgspec.json.decode(part.live, type=TokenText) for part in link.reader.of(TokensPart)]
    assert [(item.step, item.endpoint, item.text) for item in streamed] == REQUESTS
    assert not any(part.is_text for part in link.reader.of(TokensPart))
    news: tuple[dict[str, Any], ...] = ({"failure": "a: away"}, {"restart": True}, {"endpoint": "a"})
    assert not any(StreamDelta(**each).is_text for each in news)
    assert link.reader.of(Step)[0].seq == 11
    link.reader.frames.clear()
    episodes.handle(Watch(steps=True, tokens=True))
    episodes.handle(play_frame())
    link.reader.wait_for(Free)
    streamed = [msgspec.json.decode(part.live, type=TokenText) for part in link.reader.of(TokensPart)]
    assert sum(item.endpoint is not None for item in streamed) == 30
    assert {item.text for item in streamed if item.step == 0} == {"", "a", "\\ud800"}
    assert [item.text for item in streamed if item.step == 2 and item.text] == []  # above 20 a second


def test_live_items_are_encoded_only_while_steps_are_watched_and_the_numbers_are_the_same(link: RecordingLink) -> None:
    episodes = make_episodes(link, "Counter", "UpAgent", FROZEN)
    numbers: list[list[int]] = []
    for is_watched in (False, True):
        episodes.handle(Watch(steps=is_watched, tokens=False))
        link.reader.frames.clear()
        episodes.handle(play_frame())
        link.reader.wait_for(Free)
        steps, (end,) = link.reader.of(Step), link.reader.of(Ended)
        numbers.append([*(step.seq for step in steps), end.seq])
        live = [item for step in steps for item in (step.live, *step.live_spans)] + [*end.live_spans]
        if not is_watched:
            assert set(live) == {b""}
            continue
        items = [msgspec.json.decode(item, type=LiveItem) for item in live]
        assert {type(item) for item in items} == {Timestep, SpanClosed}
        found = [item.seq for item in items]
        assert found == sorted(set(found))
    assert numbers[0] == numbers[1]


def test_replies_end_requests_on_any_loop(link: RecordingLink) -> None:
    episodes = make_episodes(link, "Maze", "oracle")

    async def run() -> bool:
        task = asyncio.ensure_future(link.grant("lease", "http://env", 3))
        request = await asyncio.to_thread(link.reader.wait_for, Request)
        assert (request.target, request.instance) == ("http://env", 3)
        episodes.handle(Reply(id=request.id + 1))
        threading.Thread(target=episodes.handle, args=(Reply(id=request.id, granted=False),)).start()
        is_granted = await task
        episodes.handle(Reply(id=request.id))
        return is_granted

    assert not asyncio.run(run())


def test_the_sync_steps_of_an_episode_that_is_stopped_are_not_interrupted(link: RecordingLink) -> None:
    episodes, play = make_episodes(link, "Gated", "UpAgent"), play_frame()
    Gated.reset_gate()
    episodes.handle(play)
    assert Gated.entered.acquire(timeout=60)
    episodes.handle(Command(episode_id=play.header.episode_id, name="stop"))
    assert link.reader.of(Ended) == []
    Gated.gate.release(3)
    assert link.reader.wait_for(Ended).outcome == Outcome.SUCCESS
    link.reader.wait_for(Free)


def test_clocks_are_those_of_the_driver(link: RecordingLink) -> None:
    setup = make_setup("Counter", "AsyncUpAgent")
    configure = Configure(setup=setup, clock_offset_ns=100, wall_offset_s=60.0)
    episodes = WorkerEpisodes(link, configure, FROZEN, lambda: 7)
    episodes.handle(Play(header=episode_header(), track="slot 0"))
    assert link.reader.wait_for(Started).at == datetime(2026, 3, 4, 0, 1, tzinfo=UTC)
    link.reader.wait_for(Free)
    spans = msgspec.json.decode(link.reader.of(Ended)[0].traces.spans, type=list[Span])
    assert {(span.start_ns, span.end_ns) for span in spans} == {(107, 107)}


@pytest.mark.usefixtures("link")
def test_an_episode_does_not_wait_for_a_thread_that_stores_another_one() -> None:
    link = StoringLink()
    episodes = make_episodes(link, "Counter", "UpAgent")
    episodes.start_threads(2)
    for _ in range(3):
        play = play_frame()
        episodes.handle(play)
        link.reader.wait_for(Free, play.header.episode_id)
    link.stored.set()
    episodes.close()


def test_an_episode_that_is_abandoned_before_its_start_plays_nothing(link: RecordingLink, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    configure = Configure(setup=make_setup("Counter", "LateAgent"), runs=str(runs))
    episodes, play = WorkerEpisodes(link, configure), play_frame()
    episodes.handle(play)
    episodes.abandon(play.header.episode_id)
    imported.set()
    link.reader.wait_for(Free)
    assert (len(link.reader.frames), runs.exists()) == (1, False)
    episodes.close()


Reports: TypeAlias = "queue.Queue[BaseException | None]"


@pytest.fixture
def reports() -> Reports:
    return queue.Queue()


def test_all_work_runs_on_the_same_thread_and_loop(reports: Reports) -> None:
    threads: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        threads.append(threading.get_ident())
        loops.append(asyncio.get_running_loop())

    worker = EpisodeThread()
    for _ in range(2):
        worker.submit(work, reports.put)
        assert reports.get(timeout=10) is None
    worker.close()
    assert threads[0] == threads[1] != threading.get_ident()
    assert loops[0] is loops[1]


def test_interrupt_cancels_pending_awaits(reports: Reports) -> None:
    entered = threading.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    worker = EpisodeThread()
    worker.submit(hang, reports.put)
    assert entered.wait(10)
    worker.interrupt()
    assert isinstance(reports.get(timeout=10), asyncio.CancelledError)
    worker.close()


def test_a_base_exception_is_reported_and_the_worker_continues(reports: Reports) -> None:

    class Panic(BaseException):
        pass

    worker = EpisodeThread()
    for kind in (SystemExit, Panic, KeyboardInterrupt, GeneratorExit):

        async def fail(kind: type[BaseException] = kind) -> None:
            raise kind

        worker.submit(fail, reports.put)
        assert isinstance(reports.get(timeout=10), kind)
    worker.close()


def test_an_exit_in_a_background_task_does_not_end_the_work(reports: Reports) -> None:
    ended: list[str] = []

    async def exit_program() -> None:
        raise SystemExit(5)

    async def work() -> None:
        stray = asyncio.ensure_future(exit_program())
        await asyncio.sleep(0.01)
        assert isinstance(stray.exception(), SystemExit)
        ended.append("work")

    worker = EpisodeThread()
    worker.submit(work, reports.put)
    assert isinstance(reports.get(timeout=10), SystemExit)
    assert ended == ["work"]
    worker.close()

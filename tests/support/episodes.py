"""Parts of episodes, and a recorder that is sent the events of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st
from ulid import ULID

from runner.episode.control import EpisodeControl
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRecorder, EpisodeRow, EpisodeStore, open_index
from runner.store.episode_store import EpisodeFile
from runner.store.journal import EpisodeJournal
from runner.store.parts import Ended, Part, Reset, Step
from runner.store.recorder import LOCK_TIMEOUT_S, EpisodeLog, Meter
from runner.tracing import SpanList, TraceEncoder, Tracer
from runner.types import (
    Action,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodeStarted,
    Flow,
    GpuUse,
    Outcome,
    TimeStep,
    TimestepPlayed,
    Tokens,
    ToolCall,
    ToolSchema,
    Trajectory,
)
from runner.util.clock import Clock
from runner.util.safe_values import encode
from runner.worker.episode_reporter import EpisodeReporter
from runner.worker.frames import Watch

START = datetime(2026, 3, 4, 5, 6, 7, 890000, UTC)
END = datetime(2026, 3, 4, 5, 6, 19, tzinfo=UTC)


def new_id() -> str:
    return str(ULID())


def episode_header(**fields: Any) -> EpisodeHeader:  # noqa: ANN401
    known: dict[str, Any] = {"episode_id": new_id(), "batch_id": new_id(), "env": "Maze", "agent": "oracle"}
    return EpisodeHeader(**{**known, "started_at": START, "versions": {"python": "3.11"}, **fields})


def tool_schemas(*names: str) -> list[ToolSchema]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]


def make_step(index: int, **fields: Any) -> TimeStep:  # noqa: ANN401
    known: dict[str, Any] = {
        "chats": [[{"role": "user", "content": f"observation {index}"}, {"role": "assistant", "content": "move up"}]],
        "action": Action("move up", [ToolCall("call_0", "move", '{"direction": "up"}')]),
        "observation": [{"role": "user", "content": f"observation {index + 1}"}],
        "reward": 0.25,
        "done": False,
        "available_tool_schemas": tool_schemas("move"),
        "model_s": 0.5,
        "env_s": 0.25,
    }
    return TimeStep(**{"index": index, **known, **fields})


def rewarded_trajectory(*rewards: float) -> Trajectory:
    return Trajectory(episode_id="x", timesteps=[make_step(n, reward=reward) for n, reward in enumerate(rewards)])


def make_trajectory(header: EpisodeHeader, steps: list[TimeStep], **fields: Any) -> Trajectory:  # noqa: ANN401
    known: dict[str, Any] = {"outcome": Outcome.SUCCESS, "success": True, "duration_s": 1.5}
    reset = [{"role": "user", "content": "observation 0"}]
    return Trajectory(
        **{"episode_id": header.episode_id, "timesteps": steps, "reset_observation": reset, **known, **fields}
    )


class TracedSpans(SpanList):
    def __init__(self) -> None:
        super().__init__()
        self.tracer = Tracer("full", [self])


class LoggedParts:
    """The parts of an episode, and at its end the record that its file has."""

    def __init__(self, header: EpisodeHeader) -> None:
        self._log = EpisodeLog(header)
        self.record: EpisodeRecord | None = None

    def receive(self, part: Part) -> None:
        match part:
            case Reset():
                self._log.reset = part
            case Step():
                self._log.steps.append(part)
            case Ended():
                self.record = decoded(self._log.finish(part)[1])


def make_reporter(
    header: EpisodeHeader,
    send: Callable[[Part], None],
    *,
    tracer: Tracer | None = None,
    spans: SpanList | None = None,
    journal: EpisodeJournal | None = None,
    trace: TraceEncoder | None = None,
    watched: Callable[[], Watch] = Watch,
) -> EpisodeReporter:
    return EpisodeReporter(
        header,
        EpisodeControl(),
        tracer or Tracer(),
        spans or SpanList(),
        send,
        journal=journal,
        trace=trace or TraceEncoder(header.boot, "slot 0"),
        watched=watched,
        clock=Clock(),
    )


def decoded(content: EpisodeRecord) -> EpisodeRecord:
    """Return an episode whose parts may be encoded, as its file has it."""
    return msgspec.json.decode(encode(content), type=EpisodeRecord)


def finished_record(
    header: EpisodeHeader, trajectory: Trajectory, *, ended_at: datetime = END, flows: Sequence[Flow] = ()
) -> EpisodeRecord:
    """Return the record of a finished episode without spans."""
    spans, parts = SpanList(), LoggedParts(header)
    spans.flows += flows
    reporter, episode_id = make_reporter(header, parts.receive, spans=spans), header.episode_id
    if trajectory.reset_observation:
        reporter.on_reset(trajectory.reset_observation, trajectory.env_episode_id or "")
    for step in trajectory.timesteps:
        reporter.emit(TimestepPlayed(at=ended_at, episode_id=episode_id, seq=0, step=step))
    reporter.emit(EpisodeEnded(at=ended_at, episode_id=episode_id, seq=0, trajectory=trajectory))
    assert parts.record is not None
    return parts.record


class RecordedEpisode:
    """An episode whose events are sent to its journal and a recorder, as the runner sends them."""

    def __init__(
        self,
        store: EpisodeStore,
        index: EpisodeIndex,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        meter: Meter | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> None:
        self.header = episode_header(**fields)
        self.spans = TracedSpans()
        self.recorder = EpisodeRecorder(self.header, store, index, lock_timeout_s=lock_timeout_s, meter=meter)
        self.writer = EpisodeJournal(store.runs, self.header)
        self.parts: list[Part] = []
        self.reporter = make_reporter(
            self.header, self._receive, tracer=self.spans.tracer, spans=self.spans, journal=self.writer
        )
        self.steps: list[TimeStep] = []
        self.store = store
        self._seq = 0

    @property
    def journal(self) -> Path:
        return self.store.journal_path(self.header.batch_id, self.header.episode_id)

    @property
    def file(self) -> Path:
        return self.store.path(self.header.batch_id, self.header.episode_id)

    def send(self, kind: Callable[..., EpisodeEvent], **fields: Any) -> None:  # noqa: ANN401
        self.reporter.emit(kind(at=END, episode_id=self.header.episode_id, seq=self._seq, **fields))
        self._seq += 1

    def _receive(self, part: Part) -> None:
        self.parts.append(part)
        if isinstance(part, Ended):
            self.recorder.finish(part)
        else:
            self.recorder.receive(part)

    def start(self) -> None:
        self.send(EpisodeStarted, header=self.header)

    def reset(self, env_episode_id: str = "env episode 7") -> None:
        self.reporter.on_reset([{"role": "user", "content": "observation 0"}], env_episode_id)

    def play(self, step: TimeStep) -> None:
        self.steps.append(step)
        reset = [{"role": "user", "content": "observation 0"}] if step.index == 0 else None
        self.send(TimestepPlayed, step=step, reset_observation=reset)

    def end(self, **fields: Any) -> None:  # noqa: ANN401
        self.send(EpisodeEnded, trajectory=make_trajectory(self.header, self.steps, **fields))

    def record_episode(self, n_steps: int = 3, *, shape: str = "", **fields: Any) -> EpisodeRecord:  # noqa: ANN401
        """Record a complete episode whose requests had a shape, and return its record."""
        self.start()
        self.reset()
        with self.spans.tracer.span("episode", "episode"):
            for index in range(n_steps):
                with self.spans.tracer.span("timestep", "timestep", index=index):
                    step = make_step(index, tokens=Tokens(10, 2), cost=0.5, shape=shape or msgspec.UNSET)
                self.play(step)
        self.end(**fields)
        assert self.recorder.content is not None
        return decoded(self.recorder.content)


def record_episodes(
    data_dir: Path,
    count: int = 1,
    *,
    n_steps: int = 2,
    end: dict[str, Any] | None = None,
    **fields: Any,  # noqa: ANN401
) -> list[EpisodeRecord]:
    """Record finished episodes in a state directory; ``end``: fields of the trajectory, ``fields``: of the header."""
    store = EpisodeStore(data_dir)
    index = open_index(store)
    try:
        return [RecordedEpisode(store, index, **fields).record_episode(n_steps, **(end or {})) for _ in range(count)]
    finally:
        index.close()


def as_json(value: object) -> Any:  # noqa: ANN401
    return msgspec.json.decode(msgspec.json.encode(value))


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw ``data`` with a part replaced by random bytes."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 40)))
    return data[:start] + draw(st.binary(max_size=40)) + data[end:]


class FixedMeter:
    """Measures the same use of the GPUs, with the fields of ``GpuUse``, for every episode."""

    def __init__(self, **use: Any) -> None:  # noqa: ANN401
        self.running: list[str] = []
        self._use = GpuUse(**use)

    def start(self, episode_id: str) -> None:
        self.running.append(episode_id)

    def stop(self, episode_id: str) -> GpuUse:
        self.running.remove(episode_id)
        return self._use


def stored_files(store: EpisodeStore) -> list[EpisodeFile]:
    files = [file for batch_id in store.batch_ids() for file in store.list_batch(batch_id, [])]
    return sorted(files, key=lambda file: file.episode_id)


def newest_rows(index: EpisodeIndex, limit: int = -1) -> list[EpisodeRow]:
    return list(index.rows("ORDER BY episode_id DESC, batch_id DESC LIMIT ?", (limit,)))

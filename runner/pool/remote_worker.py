"""A worker in another process as its driver sees it: its running episodes, and what its frames mean for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from runner.episode.control import EpisodeControl
from runner.errors import RunnerError, ServerGone, catch_foreign, log_failure
from runner.pool.protocol import EpisodeReceiver, WorkerLost
from runner.pool.services import BatchServices, Send
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, encoding_problem
from runner.types import EpisodeHeader, EpisodePaused, EpisodeResumed, EpisodeStarted, Outcome, TokensStreamed
from runner.util.clock import Clock
from runner.util.resources import ResourceShortage, is_resource
from runner.worker.frames import (
    Command,
    Decided,
    Ended,
    EndpointLesson,
    EndpointOutcome,
    Failed,
    Free,
    GatewayLink,
    Hello,
    Paused,
    Play,
    Release,
    Request,
    Reset,
    Started,
    Stepped,
    Streamed,
    WorkerFrame,
)

logger = logging.getLogger(__name__)

_PLAYED = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED)
"""Outcomes after which a batch goes on in any case; after an error it may wait for its server first."""


class BrokenFrame(RunnerError):
    """A worker sent bytes that are no frame, or a frame that does not fit those before it."""


class WorkerProblem(RunnerError):
    """An exception ended an episode in another process, outside its agent and its environment."""


class RemoteControl(EpisodeControl):
    """Control of an episode in another process: commands become frames."""

    def __init__(self, episode_id: str, send: Send, clock: Clock) -> None:
        super().__init__(clock)
        self._episode_id = episode_id
        self._send = send
        self._now = clock.monotonic
        self._pause_began: float | None = None
        self._ended_pauses_s = 0.0

    def cancel(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        super().cancel(outcome)
        self._send(Command(episode_id=self._episode_id, name="cancel", outcome=outcome))

    def pause(self) -> None:
        super().pause()
        self._send(Command(episode_id=self._episode_id, name="pause"))

    def resume(self) -> None:
        super().resume()
        self._send(Command(episode_id=self._episode_id, name="resume"))

    def step(self) -> None:
        super().step()
        self._send(Command(episode_id=self._episode_id, name="step"))

    def stop_task(self) -> None:
        self._send(Command(episode_id=self._episode_id, name="stop"))

    def paused_s(self) -> float:
        began = self._pause_began
        return self._ended_pauses_s + (0.0 if began is None else self._now() - began)

    def note_pause(self, frame: Paused) -> None:
        self._pause_began = None if frame.resumed else self._now()
        self._ended_pauses_s = frame.paused_s


class _Episode(msgspec.Struct):
    header: EpisodeHeader
    receiver: EpisodeReceiver
    control: RemoteControl
    is_started: bool = False
    n_steps: int = 0
    end: EncodedEnd | None = None


class RemoteWorker:
    """The episodes of one worker; thread-safe.

    One thread passes the worker's frames to ``receive``. ``lose`` may be called on any thread.

    Args:
        name: name of the worker, and its owner id in ``services``.
        send: sends a frame to the worker, without blocking; ignored after the worker has ended.
        finish: runs a function that stores an ended episode, on any thread; by default at once.
        frees_early: whether a slot may play its next episode before the ended one is stored.
    """

    def __init__(
        self,
        name: str,
        send: Send,
        services: BatchServices,
        clock: Clock | None = None,
        finish: Callable[[Callable[[], None]], object] | None = None,
        *,
        frees_early: bool = False,
    ) -> None:
        self.name = name
        self.hello: Hello | None = None
        self.has_started_episode = False
        """Whether an episode has ever started, so that the worker is able to play."""
        self._send = send
        self._services = services
        self._clock = clock or Clock()
        self._finish = finish or (lambda function: function())
        self._frees_early = frees_early
        self._lock = threading.Lock()
        self._episodes: dict[str, _Episode] = {}
        self._n_forgotten = 0
        self._lost: str | None = None

    @property
    def n_playing(self) -> int:
        return len(self._episodes)

    @property
    def lost(self) -> str | None:
        return self._lost

    def play(self, header: EpisodeHeader, track: str, receiver: EpisodeReceiver, *, paused: bool) -> RemoteControl:
        """Send an episode to the worker; a lost worker reports ``WorkerLost`` to the receiver."""
        control = RemoteControl(header.episode_id, self._send, self._clock)
        with self._lock:
            lost = self._lost
            if lost is None:
                self._episodes[header.episode_id] = _Episode(header, receiver, control)
        if lost is not None:
            receiver.on_done(self._lost_error(lost, 0))
        else:
            self._send(Play(header=header, track=track, paused=paused))
        return control

    def forget(self, episode_id: str) -> bool:
        """Ignore everything that the worker still sends of an episode; return whether it was running."""
        with self._lock:
            was_running = self._episodes.pop(episode_id, None) is not None
            self._n_forgotten += was_running
        return was_running

    def lose(self, reason: str) -> None:
        """End all episodes with ``WorkerLost``, and release everything that the worker holds; once."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = reason
            episodes, self._episodes = self._episodes, {}
        n_suspects = 0 if self.hello is None else len(episodes) + self._n_forgotten
        with catch_foreign(log_failure(logger, "releasing what a lost worker held")):
            self._services.disconnect(self)
        for episode in episodes.values():
            self._end(episode, self._lost_error(reason, n_suspects))

    def receive(self, frame: WorkerFrame) -> None:
        """Raises ``BrokenFrame`` if the frame does not fit those before it, or its content cannot be stored."""
        match frame:
            case Hello():
                self._greet(frame)
            case Request() | Release() | EndpointOutcome() | EndpointLesson() | GatewayLink():
                self._services.handle(self, frame, self._send)
            case Free():
                self._free(frame)
            case _:
                if (episode := self._episodes.get(frame.episode_id)) is not None:
                    self._report(episode, frame)

    def _greet(self, hello: Hello) -> None:
        if self.hello is not None:
            raise BrokenFrame("a second greeting")
        self.hello = hello
        self._services.connect(self, self._send)

    def _free(self, frame: Free) -> None:
        with self._lock:
            episode = self._episodes.pop(frame.episode_id, None)
        if episode is not None:
            self._end(episode, None if frame.problem is None else _problem(frame.problem, frame.shortage))

    def _end(self, episode: _Episode, problem: BaseException | None) -> None:
        end = episode.end
        if end is None:
            episode.receiver.on_done(problem)
            return

        def finish() -> None:
            episode.receiver.on_end(end)
            episode.receiver.on_done(problem)

        if self._frees_early and problem is None and end.outcome in _PLAYED:
            episode.receiver.on_played()
        self._finish(finish)

    def _report(
        self, episode: _Episode, frame: Started | Reset | Stepped | Paused | Streamed | Failed | Decided | Ended
    ) -> None:
        receiver, control, episode_id = episode.receiver, episode.control, frame.episode_id
        if not (episode.is_started or isinstance(frame, Started)):
            raise BrokenFrame(f"{type(frame).__name__} of an episode that has not started")
        match frame:
            case Started():
                self.has_started_episode = episode.is_started = True
                receiver.on_event(
                    EpisodeStarted(at=frame.at, episode_id=episode_id, seq=frame.seq, header=episode.header)
                )
            case Reset():
                _check(frame.reset)
                receiver.on_reset(frame.reset)
            case Stepped():
                _check(frame.step, episode.n_steps)
                episode.n_steps += 1
                receiver.on_step(frame.step)
            case Paused():
                control.note_pause(frame)
                kind = EpisodeResumed if frame.resumed else EpisodePaused
                receiver.on_event(kind(at=frame.at, episode_id=episode_id, seq=frame.seq))
            case Streamed():
                receiver.on_event(
                    TokensStreamed(
                        at=frame.at, episode_id=episode_id, seq=frame.seq, step=frame.step, delta=frame.delta
                    )
                )
            case Failed():
                receiver.on_error(_error(frame))
            case Decided():
                control.final_error, control.final_outcome = frame.error, frame.outcome
            case Ended():
                _check(frame.end)
                episode.end = frame.end

    def _lost_error(self, reason: str, n_suspects: int) -> WorkerLost:
        return WorkerLost(f"{self.name} was lost: {reason}", n_suspects)


def _check(part: EncodedReset | EncodedStep | EncodedEnd, n_steps: int = 0) -> None:
    if (problem := encoding_problem(part)) is not None:
        raise BrokenFrame(f"{type(part).__name__}: {problem}")
    if isinstance(part, EncodedStep) and part.summary.index != n_steps:
        raise BrokenFrame(f"step {part.summary.index} in place of step {n_steps}")


def _error(frame: Failed) -> BaseException:
    if is_resource(frame.shortage):
        return ResourceShortage(frame.shortage, "in a worker")
    if frame.gone is not None:
        return ServerGone(frame.gone, timed_out=frame.timed_out)
    return WorkerProblem("the episode failed")


def _problem(text: str, shortage: str | None) -> BaseException:
    return ResourceShortage(shortage, text) if is_resource(shortage) else WorkerProblem(text)

"""One episode in a slot, as its batch sees it: what is recorded of it, how it is commanded, when it is given up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from runner.batch.worker import Slot
from runner.episode.control import EpisodeControl
from runner.errors import boundary
from runner.store import EpisodeRecorder
from runner.types import Chat, EpisodeEvent, EpisodeHeader, ErrorInfo, Flow, Outcome, Span
from runner.util.clock import Clock

CommandName: TypeAlias = Literal["cancel", "interrupt", "abort", "pause", "resume", "step"]

INTERRUPT_AFTER_S = 2.0
"""Seconds a cancelled episode has to reach a step boundary before what it awaits is cancelled."""


class Command(msgspec.Struct, frozen=True):
    """What to do with a batch, or with one of its episodes.

    ``cancel`` ends it for good, ``interrupt`` so that it can be resumed, ``abort`` without waiting for running steps.
    """

    name: CommandName
    episode_id: str | None = None

    @property
    def ends(self) -> Outcome | None:
        """The outcome of the episodes that it ends."""
        if self.name in ("cancel", "abort"):
            return Outcome.CANCELLED
        return Outcome.INTERRUPTED if self.name == "interrupt" else None


@dataclass
class EpisodeSpans:
    """The spans of an episode as its recorder wants them."""

    spans: list[Span]
    flows: list[Flow]
    open_spans: Callable[[], list[Span]]
    n_told: int = 0

    def newly_closed(self) -> list[Span]:
        """The spans that are over and were not asked for before."""
        fresh = self.spans[self.n_told :]
        self.n_told += len(fresh)
        return fresh


@dataclass
class Playing:
    """An episode that was given to a slot.

    Attributes:
        deadline_s: seconds, without the paused ones, after which its slot is given up.
        grace_s: seconds that it has to end after it was told to.
        problems: what could not be recorded.
    """

    slot: Slot
    header: EpisodeHeader
    recorder: EpisodeRecorder
    control: EpisodeControl
    clock: Clock
    deadline_s: float
    grace_s: float
    problems: list[BaseException] = field(default_factory=list)
    _interrupted: bool = False
    _cancelled_at: float | None = None

    def __post_init__(self) -> None:
        self._started = self.clock.monotonic()

    def record(self, event: EpisodeEvent) -> None:
        """Keep an event; what goes wrong with that is remembered and never reaches the episode."""
        with boundary(self.problems.append):
            self.recorder.on_event(event)

    def record_reset(self, observation: Chat, env_episode_id: str) -> None:
        """Keep what the reset gave; what goes wrong with that never reaches the episode either."""
        with boundary(self.problems.append):
            self.recorder.on_reset(observation, env_episode_id)

    def obey(self, command: Command) -> None:
        """Pass a command on."""
        if (outcome := command.ends) is not None:
            self.control.cancel(outcome)
            self._cancelled_at = self._cancelled_at or self.clock.monotonic()
            if command.name == "abort":
                self._cancelled_at = float("-inf")
            return
        match command.name:
            case "pause":
                self.control.pause()
            case "resume":
                self.control.resume()
            case "step":
                self.control.step()

    def left_s(self) -> float:
        """Seconds until ``overdue`` has to be asked again."""
        if self._cancelled_at is not None:
            return 0.1
        return self.deadline_s - (self.clock.monotonic() - self._started - self.control.paused_s())

    def overdue(self) -> bool:
        """Whether it is to be given up; an episode that does not heed its end is first cancelled where it waits."""
        if self._cancelled_at is None:
            return self.left_s() < 0
        waited_s = self.clock.monotonic() - self._cancelled_at
        if waited_s > INTERRUPT_AFTER_S and not self._interrupted:
            self._interrupted = True
            self.slot.interrupt()
        return waited_s > INTERRUPT_AFTER_S + self.grace_s

    def give_up(self) -> None:
        """Store what the journal has of it; whatever its slot still does changes nothing any more."""
        settled = self.control.settled
        outcome = settled or self.control.cancelled or Outcome.TIMEOUT
        late = ErrorInfo("slot_abandoned", self._why_given_up(), "")
        with boundary(self.problems.append):
            self.recorder.abandon(outcome, None if settled else late)
        self.slot.close()

    def _why_given_up(self) -> str:
        if self._cancelled_at is None:
            return f"The episode did not come back within {self.deadline_s:g} s"
        waited_s = self.clock.monotonic() - self._cancelled_at
        if math.isinf(waited_s):
            return "The episode was given up at once, in the middle of a step"
        return f"The episode was told to end and did not come back within {waited_s:.1f} s"

"""Frames between a driver and its workers, in MessagePack: one closed union for each direction.

``runner.util.framing`` sends them. A worker is as trustworthy as the driver's own process, since both run the same
third-party code, but a frame is decoded strictly and its size is bounded.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from runner.config.profile import Capabilities, LessonKey
from runner.episode.control import EpisodeCommand
from runner.inference.errors import Reason
from runner.store.parts import Part, part_problem
from runner.types import EpisodeHeader, Outcome
from runner.types.phases import ServerTimes
from runner.worker.runner_setup import RunnerSetup

StartMode: TypeAlias = Literal["fork", "spawn"]


RequestName: TypeAlias = Literal["place", "lease", "enter"]


class StartWorker(msgspec.Struct, frozen=True):
    """Request of a driver to its fork server, with the descriptors of the worker's channel and of its log.

    ``path`` is its ``sys.path``.
    """

    name: str
    environ: list[tuple[bytes, bytes]]
    folder: bytes
    path: list[bytes]


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="t"):
    pass


# --- from the driver to a worker


class Configure(_Frame, frozen=True):
    """First frame of the driver: how to build the agents and environments of all following episodes.

    Attributes:
        runs: folder of the batches, into which the worker writes the journals; None if the driver writes them.
        secrets: environment variables with API keys and other secrets, which no process inherits.
        clock_offset_ns: nanoseconds to add to the worker's monotonic clock to get the driver's.
        wall_offset_s: seconds to add to the worker's wall clock to get the driver's.
    """

    setup: RunnerSetup
    runs: str | None = None
    secrets: dict[str, str] = {}
    clock_offset_ns: int = 0
    wall_offset_s: float = 0.0


class Play(_Frame, frozen=True):
    """Play an episode; ``track`` is the row of its spans in traces."""

    header: EpisodeHeader
    track: str
    paused: bool = False


class Command(_Frame, frozen=True):
    """A command to a running episode; unknown episodes are ignored, because an episode may have just ended.

    ``cancel`` ends it before its next step with ``outcome``. ``stop`` cancels its asyncio task at the next ``await``.
    """

    episode_id: str
    name: EpisodeCommand | Literal["stop"]
    outcome: Outcome = Outcome.CANCELLED


class Reply(_Frame, frozen=True):
    """Reply to a worker's ``Request`` with the same ``id``; ``error`` is a text if the request failed."""

    id: int
    granted: bool = True
    error: str | None = None


class EndpointTimes(_Frame, frozen=True):
    """The mean seconds that an endpoint's server spends in each phase of a request; None: unknown."""

    endpoint: str
    times: ServerTimes | None = None


class EndpointLesson(_Frame, frozen=True):
    """What a model endpoint takes, for both directions: a worker or the driver has learned it from a refusal."""

    key: LessonKey
    capabilities: Capabilities


class Watch(_Frame, frozen=True):
    """Which live items are watched: steps with requests and spans, and streamed texts. A worker sends no others."""

    steps: bool = True
    tokens: bool = True


DriverFrame: TypeAlias = Configure | Play | Command | Reply | EndpointTimes | EndpointLesson | Watch


# --- from a worker to the driver


class Hello(_Frame, frozen=True):
    """First frame of a worker, with the time of its clocks."""

    worker_id: str
    host: str
    pid: int
    monotonic_ns: int
    wall: datetime


class Request(_Frame, frozen=True):
    """A request for something that exists once per batch; the driver answers with a ``Reply``.

    ``place``: a place on an environment server, granted when one is free. ``lease``: an instance, with its id
    (``granted`` is False if another episode leases it). ``enter``: a request to the model endpoint ``target``;
    ``instance`` numbers it. A ``Release`` of the same number ends the request, or the wait for its ``Reply``.
    """

    id: int
    name: RequestName
    target: str
    instance: int | str


class Release(_Frame, frozen=True):
    """The end of what ``Request`` granted; a lost worker releases everything."""

    name: RequestName
    target: str
    instance: int | str


class EndpointOutcome(_Frame, frozen=True):
    """The outcome of a request to a model endpoint; ``failure`` is None for a success.

    ``cause`` is the text of the failure, without secrets; ``retry_after_s`` are the seconds that the endpoint
    requested.
    """

    endpoint: str
    failure: Reason | None = None
    cause: str = ""
    retry_after_s: float | None = None


class GatewayLink(_Frame, frozen=True):
    """A gateway's id of an episode, for its feedback."""

    episode_id: str
    endpoint: str
    gateway_id: str


WorkerFrame: TypeAlias = Hello | Part | Request | Release | EndpointOutcome | EndpointLesson | GatewayLink

_ENCODER = msgspec.msgpack.Encoder()
_FROM_DRIVER: msgspec.msgpack.Decoder[DriverFrame] = msgspec.msgpack.Decoder(DriverFrame)
_FROM_WORKER: msgspec.msgpack.Decoder[WorkerFrame] = msgspec.msgpack.Decoder(WorkerFrame)


def encode_frame(frame: DriverFrame | WorkerFrame) -> bytes:
    """Return a frame as MessagePack, without its length."""
    return _ENCODER.encode(frame)


def decode_driver_frame(data: bytes) -> DriverFrame:
    """Raises ``ValueError`` or ``RecursionError`` if the frame is not valid."""
    return _FROM_DRIVER.decode(data)


def decode_worker_frame(data: bytes) -> WorkerFrame:
    """Raises ``ValueError`` or ``RecursionError`` if the frame is not valid, or its content cannot be stored."""
    frame = _FROM_WORKER.decode(data)
    if isinstance(frame, Part) and (problem := part_problem(frame)) is not None:
        raise ValueError(f"{type(frame).__name__}: {problem}")
    return frame

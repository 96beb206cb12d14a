"""What exists once per batch, for its workers: places and leases of servers, endpoint rests and limits, feedback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeAlias

from runner.envs.http.places import PlaceTable
from runner.inference.errors import EndpointFailure
from runner.inference.profile_models import Models
from runner.types.phases import ServerTimes
from runner.worker.frames import (
    DriverFrame,
    EndpointLesson,
    EndpointOutcome,
    EndpointTimes,
    GatewayLink,
    Release,
    Reply,
    Request,
)
from runner.worker.runner_setup import RunnerSetup

if TYPE_CHECKING:
    from runner.config.profile import Capabilities, LessonKey

logger = logging.getLogger(__name__)

Send: TypeAlias = Callable[[DriverFrame], object]
ServiceFrame: TypeAlias = Request | Release | EndpointOutcome | EndpointLesson | GatewayLink


class BatchServices:
    """Answers the requests of the workers of one batch; thread-safe, and never blocks.

    Args:
        models: the profile's models, whose gate admits requests; None if the agent uses no model.
        release_owner: releases the places and leases of a worker that has ended; must not block. By default
            that of the places.
    """

    def __init__(
        self,
        places: PlaceTable,
        models: Models | None,
        release_owner: Callable[[Hashable], object] | None = None,
    ) -> None:
        self._places = places
        self._release_owner = release_owner or places.release_owner
        self._models = models
        self._gate = None if models is None else models.gate
        self._end_watches: dict[Hashable, Callable[[], object]] = {}

    def connect(self, owner: Hashable, send: Send) -> None:
        if self._gate is None:
            return

        def send_times(endpoint: str, times: ServerTimes | None) -> None:
            send(EndpointTimes(endpoint=endpoint, times=times))

        def send_lesson(key: LessonKey, learned: Capabilities) -> None:
            send(EndpointLesson(key=key, capabilities=learned))

        ends = self._gate.server_times.watch(send_times), self._gate.lessons.watch(send_lesson)
        self._end_watches[owner] = lambda: [end() for end in ends]

    def disconnect(self, owner: Hashable) -> None:
        """The worker must have ended."""
        if (end_watch := self._end_watches.pop(owner, None)) is not None:
            end_watch()
        if self._gate is not None:
            self._gate.release_all(owner)
        self._release_owner(owner)

    def handle(self, owner: Hashable, frame: ServiceFrame, send: Send) -> None:
        """Act on a frame of a worker; ``send`` receives the reply to a request, now or later, on any thread."""
        match frame:
            case Request():
                self._request(owner, frame, send)
            case Release():
                self._release(owner, frame)
            case EndpointOutcome():
                self._note_outcome(frame)
            case EndpointLesson():
                if self._gate is not None:
                    self._gate.lessons.keep(frame.key, frame.capabilities)
            case GatewayLink():
                if self._models is not None:
                    self._models.manager.remember_gateway_id(frame.episode_id, frame.endpoint, frame.gateway_id)

    def _request(self, owner: Hashable, request: Request, send: Send) -> None:
        def reply(granted: bool) -> None:
            send(Reply(id=request.id, granted=granted))

        if request.name != "enter":
            self._places.request(request.name, request.target, request.instance, reply, owner)
        elif self._gate is not None:
            self._gate.request(owner, request.instance, request.target, reply)
        else:
            send(Reply(id=request.id, granted=False, error="the batch has no models"))

    def _note_outcome(self, outcome: EndpointOutcome) -> None:
        if self._gate is None:
            return
        failure = None
        if outcome.failure is not None:
            failure = EndpointFailure(outcome.failure, outcome.cause, retry_after_s=outcome.retry_after_s)
        self._gate.report(outcome.endpoint, failure, outcome.cause)

    def _release(self, owner: Hashable, release: Release) -> None:
        if release.name != "enter":
            self._places.release(release.name, release.target, release.instance, owner)
        elif self._gate is not None:
            self._gate.release(owner, release.instance)


def batch_services(setup: RunnerSetup, models: Models | None) -> BatchServices:
    """They share the places and leases of all batches of this process."""
    if setup.address is None:
        return BatchServices(PlaceTable(), models)
    # imported late: only batches on a server need them
    from runner.envs.http.client import PLACES, places_on, release_lost_owner
    from runner.envs.http.environment import select_dialect

    dialect, address = select_dialect(setup.env.name, setup.address), setup.address

    def release_owner(owner: Hashable) -> None:
        try:
            if PLACES.instances_of(owner):
                release_lost_owner(owner, dialect, address)
                return
        except (RuntimeError, MemoryError) as exc:
            logger.warning("the instances of a lost worker stay open on their server: %s", exc)
        PLACES.release_owner(owner)

    PLACES.declare(*places_on(dialect, address))
    return BatchServices(PLACES, models, release_owner)

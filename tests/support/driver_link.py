"""A worker's link to the gate of a driver, with encoded frames but without a process between them."""

from __future__ import annotations

import threading

from runner.config.profile import Capabilities, LessonKey
from runner.inference.errors import EndpointFailure
from runner.inference.gate import LocalGate
from runner.worker.driver_link import DriverLink
from runner.worker.frames import (
    EndpointLesson,
    EndpointOutcome,
    GatewayLink,
    Release,
    Reply,
    Request,
    WorkerFrame,
    decode_driver_frame,
    decode_worker_frame,
    encode_frame,
)
from runner.worker.remote_gate import RemoteGate


class DriverGateLink(DriverLink):
    """Applies a worker's frames to the driver's gate; ``sent`` and ``requests`` are what the worker sent.

    ``has_requested`` is set by its first request.
    """

    def __init__(self, gate: LocalGate, worker: str) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.requests: list[int | str | None] = []
        self.has_requested = threading.Event()
        self.gateway_links: list[GatewayLink] = []
        self._gate = gate
        self._worker = worker

    def send(self, frame: WorkerFrame) -> None:
        if isinstance(frame, Request):
            request_id = frame.id
            self.requests.append(frame.instance)
            self.has_requested.set()
            self._gate.request(
                self._worker,
                frame.instance,
                frame.target,
                lambda granted: self.resolve(Reply(id=request_id, granted=granted)),
            )
            return
        self.sent.append(encode_frame(frame))
        match decode_worker_frame(self.sent[-1]):
            case EndpointOutcome(failure=reason) as outcome:
                failure = (
                    None
                    if reason is None
                    else EndpointFailure(reason, outcome.cause, retry_after_s=outcome.retry_after_s)
                )
                self._gate.report(outcome.endpoint, failure, outcome.cause)
            case EndpointLesson() as lesson:
                self._gate.lessons.keep(lesson.key, lesson.capabilities)
            case Release(instance=key):
                self._gate.release(self._worker, key)
            case GatewayLink() as link:
                self.gateway_links.append(link)

    def watch(self, gate: RemoteGate) -> None:
        """Send what the endpoints take to a worker's gate, as the driver does."""

        def on_lesson(key: LessonKey, learned: Capabilities) -> None:
            frame = decode_driver_frame(encode_frame(EndpointLesson(key=key, capabilities=learned)))
            assert isinstance(frame, EndpointLesson)
            gate.lessons.keep(frame.key, frame.capabilities, is_news=False)

        self._gate.lessons.watch(on_lesson)

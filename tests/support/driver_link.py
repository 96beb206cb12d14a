"""A worker's link to the gate of a driver, with encoded frames but without a process between them."""

from __future__ import annotations

import threading

from runner.config.profile import Capabilities, LessonKey
from runner.inference.gate import LocalGate
from runner.worker.channel import DriverLink
from runner.worker.frames import (
    EndpointLesson,
    EndpointOutcome,
    EndpointRest,
    GatewayLink,
    Release,
    Reply,
    Request,
    WorkerFrame,
    decode_driver_frame,
    decode_worker_frame,
    encode_frame,
)
from runner.worker.remote_gate import RemoteGate, apply_outcome


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
            case EndpointOutcome() as outcome:
                apply_outcome(self._gate, outcome)
            case EndpointLesson() as lesson:
                self._gate.lessons.keep(lesson.key, lesson.capabilities)
            case Release(instance=key):
                self._gate.release(self._worker, key)
            case GatewayLink() as link:
                self.gateway_links.append(link)

    def watch(self, gate: RemoteGate) -> None:
        """Send the rests of the endpoints and what they take to a worker's gate, as the driver does."""

        def on_rest(endpoint: str, wait_s: float, cause: str) -> None:
            frame = decode_driver_frame(encode_frame(EndpointRest(endpoint=endpoint, wait_s=wait_s, cause=cause)))
            assert isinstance(frame, EndpointRest)
            gate.on_rest(frame)

        def on_lesson(key: LessonKey, learned: Capabilities) -> None:
            frame = decode_driver_frame(encode_frame(EndpointLesson(key=key, capabilities=learned)))
            assert isinstance(frame, EndpointLesson)
            gate.on_lesson(frame)

        self._gate.watch(on_rest)
        self._gate.lessons.watch(on_lesson)
        for state in self._gate.states():
            on_rest(*state)

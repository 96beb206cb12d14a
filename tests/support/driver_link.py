"""A worker's link to the gate of a driver, with encoded frames but without a process between them."""

from __future__ import annotations

from runner.inference.gate import LocalGate
from runner.worker.frames import (
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
from runner.worker.link import DriverLink
from runner.worker.remote_gate import RemoteGate, apply_outcome


class DriverGateLink(DriverLink):
    """Applies a worker's frames to the driver's gate; ``sent`` and ``requests`` are what the worker sent."""

    def __init__(self, gate: LocalGate, worker: str) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.requests: list[int | str | None] = []
        self.gateway_links: list[GatewayLink] = []
        self._gate = gate
        self._worker = worker

    def send(self, frame: WorkerFrame) -> None:
        if isinstance(frame, Request):
            request_id = frame.id
            self.requests.append(frame.instance)
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
            case Release(instance=key):
                self._gate.release(self._worker, key)
            case GatewayLink() as link:
                self.gateway_links.append(link)

    def watch(self, gate: RemoteGate) -> None:
        """Send the rests of the endpoints to a worker's gate, as the driver does."""

        def on_rest(endpoint: str, wait_s: float, cause: str) -> None:
            frame = decode_driver_frame(encode_frame(EndpointRest(endpoint=endpoint, wait_s=wait_s, cause=cause)))
            assert isinstance(frame, EndpointRest)
            gate.on_rest(frame)

        self._gate.watch(on_rest)
        for state in self._gate.states():
            on_rest(*state)

"""A worker's link to the gate of a driver, with encoded frames but without a process between them."""

from __future__ import annotations

import asyncio
from typing import Literal

from runner.inference.gate import LocalGate
from runner.worker.frames import (
    EndpointOutcome,
    EndpointRest,
    GatewayLink,
    Release,
    Reply,
    WorkerFrame,
    decode_driver_frame,
    decode_worker_frame,
    encode_frame,
)
from runner.worker.remote_gate import RemoteGate, apply_outcome


class DriverGateLink:
    """Applies a worker's frames to the driver's gate; ``sent`` and ``requests`` are what the worker sent."""

    def __init__(self, gate: LocalGate, worker: str) -> None:
        self.sent: list[bytes] = []
        self.requests: list[int | str | None] = []
        self.gateway_links: list[GatewayLink] = []
        self._gate = gate
        self._worker = worker

    def send(self, frame: WorkerFrame) -> None:
        self.sent.append(encode_frame(frame))
        match decode_worker_frame(self.sent[-1]):
            case EndpointOutcome() as outcome:
                apply_outcome(self._gate, outcome)
            case Release(instance=key):
                self._gate.release(self._worker, key)
            case GatewayLink() as link:
                self.gateway_links.append(link)

    async def request(
        self, name: Literal["place", "lease", "enter"], target: str, instance: int | str | None = None
    ) -> Reply:
        assert name == "enter"
        self.requests.append(instance)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()

        def on_reply(granted: bool) -> None:
            loop.call_soon_threadsafe(lambda: None if reply.done() else reply.set_result(Reply(id=1, granted=granted)))

        self._gate.request(self._worker, instance, target, on_reply)
        return await reply

    def watch(self, gate: RemoteGate) -> None:
        """Send the rests of the endpoints to a worker's gate, as the driver does."""

        def on_rest(endpoint: str, wait_s: float, cause: str) -> None:
            frame = decode_driver_frame(encode_frame(EndpointRest(endpoint=endpoint, wait_s=wait_s, cause=cause)))
            assert isinstance(frame, EndpointRest)
            gate.on_rest(frame)

        self._gate.watch(on_rest)
        for state in self._gate.states():
            on_rest(*state)

"""The link of a worker to its driver, as its parts see it: a socket, or the frames of a Ray actor."""

from __future__ import annotations

from typing import Literal, Protocol

from runner.worker.frames import Reply, WorkerFrame


class DriverLink(Protocol):
    """Sends frames to the driver and asks it for what exists once per batch; thread-safe."""

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame; blocks while the driver reads too slowly."""

    async def request(
        self, name: Literal["place", "lease", "enter"], target: str, instance: int | str | None = None
    ) -> Reply:
        """Send a ``Request`` and return the driver's reply; callable on any event loop."""

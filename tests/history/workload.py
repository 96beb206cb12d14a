"""The driver of a history: sends the requests of the schedule, and at the end lets the node play what is left."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.history.clients import ControlClient
from tests.history.schedule import Request, stays_interrupted

GIVE_UP_S = 60.0
"""Seconds for which a start request is repeated until it is answered."""
UNFINISHED = ("queued", "running", "paused")


class Workload:
    """Sends requests about batches.

    Attributes:
        starts: arguments of the start request by batch id of the request.
        batches: the batches of the last list.
    """

    def __init__(self, client: ControlClient) -> None:
        self.starts: dict[str, dict[str, Any]] = {}
        self.batches: list[dict[str, Any]] = []
        self._client = client
        self._n_starts = self._n_starts_listed = 0

    @property
    def is_idle(self) -> bool:
        """Whether the last list has nothing unfinished, and has all batches whose start was requested."""
        is_listed = self._n_starts == self._n_starts_listed
        return is_listed and not any(batch["status"] in UNFINISHED for batch in self.batches)

    async def send(self, request: Request) -> None:
        match request.kind:
            case "start" | "repeat":
                self.starts.setdefault(request.args["batch_id"], request.args)
                self._n_starts += 1
                await self._client.call_until_answered("start", request.args, time.monotonic() + GIVE_UP_S)
            case "cancel" | "pause" | "resume":
                await self._client.call(request.kind, **request.args)
            case "resume_interrupted":
                await self.resume_interrupted()

    async def resume_interrupted(self) -> int:
        """Resume interrupted batches, except those that stay so; return how many there were."""
        if not await self.refresh():
            return 0
        interrupted = {
            batch["battery_id"] or batch["batch_id"] for batch in self.batches if batch["status"] == "interrupted"
        }
        resumed = [batch_id for batch_id in interrupted if batch_id in self.starts and not stays_interrupted(batch_id)]
        for batch_id in resumed:
            self._n_starts += 1
            await self._client.call("start", **self.starts[batch_id], resume=True)
        return len(resumed)

    async def refresh(self) -> bool:
        """Update ``batches``; return whether the node answered."""
        n_starts = self._n_starts
        reply = await self._client.call("list")
        if reply is None or not reply.get("ok"):
            return False
        self.batches, self._n_starts_listed = reply["result"]["batches"], n_starts
        return True

    async def settle(self, deadline: float) -> bool:
        """Resume all that is paused or interrupted until nothing runs or waits; return whether that was reached."""
        while time.monotonic() < deadline:
            if await self.refresh():
                for batch in self.batches:
                    if batch["status"] == "paused" or batch.get("paused"):  # waiting ones are paused, too
                        await self._client.call("resume", batch_id=batch["batch_id"])
                if await self.resume_interrupted() == 0 and self.is_idle:
                    return True
            await asyncio.sleep(0.3)
        return False

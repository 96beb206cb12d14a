"""How a reply goes over the wire: at once or in pieces, with pauses, to its end or not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from starlette.types import Receive, Scope, Send


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A reply as the ASGI application that sends it; it gives up when the client leaves.

    Attributes:
        closing: set when the server stops, which ends whatever still waits.
        delay_s: seconds before the headers, infinite where nothing is to come.
        pause_s: seconds before each piece but the first.
        whole: whether the reply is ended as it should be; else the connection is closed after the last piece.
    """

    closing: asyncio.Event
    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0
    pause_s: float = 0.0
    whole: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if not (self.delay_s or self.pause_s) and len(self.pieces) < 2:
            await self._send(send)
            return
        tasks = [asyncio.ensure_future(work) for work in (self._send(send), _left(receive), self.closing.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await asyncio.sleep(self.delay_s)
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for index, piece in enumerate(self.pieces):
            if index:
                await asyncio.sleep(self.pause_s)  # also without a pause: else nobody hears that the client left
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if self.whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        """What is left of the request does not matter."""

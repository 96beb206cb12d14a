"""The product's test endpoint as a server on a thread of the test process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec
from anyio.from_thread import start_blocking_portal
from starlette.requests import Request
from starlette.responses import Response

from runner.serve.host import ServerLimits, Site
from runner.serve.mock_llm.app import MARK, ModelApp, Responder
from runner.serve.mock_llm.completion import TEST_MODEL_NAME
from runner.serve.mock_llm.script import Behavior, Fault
from tests.support.serving import serve_sites

N_RECEIVED = 1000


class ReceivedRequest(msgspec.Struct, frozen=True):
    """A received completion request; its header names are in lower case."""

    headers: Mapping[str, str]
    body: bytes


class RecordedModelApp(ModelApp):
    """Keeps the latest ``N_RECEIVED`` requests in ``received``."""

    def __init__(self, responder: Responder | None, *, behavior: Behavior | None, models: Iterable[str]) -> None:
        super().__init__(responder, behavior=behavior, models=models)
        self.received: deque[ReceivedRequest] = deque(maxlen=N_RECEIVED)

    async def complete(self, request: Request) -> Response:
        self.received.append(ReceivedRequest(dict(request.headers), await request.body()))
        return await super().complete(request)


class ModelServer:
    """A test endpoint on 127.0.0.1; it runs between ``start`` and ``stop`` or in a ``with`` block, and can restart.

    Args:
        responder: writes the replies; None: the oracle.
        behavior: delays and faults; None: none.
        models: additional model names for the responder.
        token: token that clients must send as ``Authorization: Bearer …``; None: no token.
        port: port of the server; 0 selects a free port at the first start, which is kept for restarts.
    """

    def __init__(
        self,
        responder: Responder | None = None,
        *,
        behavior: Behavior | None = None,
        models: Iterable[str] = (),
        token: str | None = None,
        port: int = 0,
    ) -> None:
        self._token = token
        self._running = ExitStack()
        self.app = RecordedModelApp(responder, behavior=behavior, models=models)
        self.port = port

    @property
    def url(self) -> str:
        """Base URL of the server, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def received(self) -> list[ReceivedRequest]:
        """The received completion requests, oldest first."""
        return list(self.app.received)

    def inject(self, *faults: Fault) -> None:
        """Replace the faults that affect later requests."""
        self.app.inject(*faults)

    def start(self) -> Self:
        """Start the server; return when it accepts requests."""
        site = Site(self.app.asgi_app(token=self._token), "127.0.0.1", self.port, TEST_MODEL_NAME, (MARK,))
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            serving = serve_sites([site], ServerLimits(shutdown_timeout_s=0))
            (line,) = stack.enter_context(portal.wrap_async_context_manager(serving))
            self.port = int(line.partition(" ")[0].rpartition(":")[2])
            self._running = stack.pop_all()
        return self

    def stop(self) -> None:
        """Stop the server: end all responses that are not complete, and close the connections."""
        self._running.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

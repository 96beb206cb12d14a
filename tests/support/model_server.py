"""The product's test endpoint as a server on a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runner.errors import catch_foreign
from runner.serve.host import ServerLimits, Site, serve_apps
from runner.serve.mock_llm.app import MARK, ModelApp, Responder
from runner.serve.mock_llm.completion import TEST_MODEL_NAME
from runner.serve.mock_llm.script import Behavior, Fault

START_TIMEOUT_S = 20.0
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
        self._stop: Callable[[], object] = _nothing
        self._thread: threading.Thread | None = None
        self._errors: list[BaseException] = []
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
        """Start the server; return when it accepts requests.

        Raises:
            RuntimeError: the server did not start within ``START_TIMEOUT_S`` seconds.
        """
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name=TEST_MODEL_NAME, daemon=True)
        self._thread.start()
        if not ready.wait(START_TIMEOUT_S) or self._errors:
            raise RuntimeError(f"{TEST_MODEL_NAME} did not start") from next(iter(self._errors), None)
        return self

    def stop(self) -> None:
        """Stop the server: end all responses that are not complete, and close the connections."""
        self._stop()
        if self._thread is not None:
            self._thread.join(START_TIMEOUT_S)
        self._stop, self._thread = _nothing, None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self, ready: threading.Event) -> None:
        self._errors.clear()
        with catch_foreign(self._errors.append):
            asyncio.run(self._run(ready))
        ready.set()

    async def _run(self, ready: threading.Event) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_ready(line: str) -> None:
            self.port = int(line.partition(" ")[0].rpartition(":")[2])
            self._stop = lambda: loop.call_soon_threadsafe(stop.set)
            ready.set()

        site = Site(self.app.asgi_app(token=self._token), "127.0.0.1", self.port, TEST_MODEL_NAME, (MARK,))
        await serve_apps([site], on_ready=on_ready, stop=stop, limits=ServerLimits(shutdown_timeout_s=0))


def _nothing() -> None:
    """Do nothing: the server is not running."""

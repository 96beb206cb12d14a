"""The endpoint on a thread of this process, for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from runner.errors import catch_foreign
from runner.serve.host import Site, serve_apps
from runner.serve.mock_llm.app import ModelApp, ReceivedRequest
from runner.serve.mock_llm.faults import Behavior, Fault
from runner.serve.mock_llm.reply import TEST_MODEL_NAME, Responder

START_TIMEOUT_S = 20.0


class ModelServer:
    """A test endpoint on 127.0.0.1, from ``start`` to ``stop`` or for a ``with`` block; it can be started again.

    Args:
        player: writes the replies; by default the oracle.
        behaviour: delays and faults.
        models: further names that the player answers to.
        token: what clients have to send as ``Authorization: Bearer …``.
        port: 0 is a free one, which is kept when the server is started again.
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
        self._problems: list[BaseException] = []
        self.app = ModelApp(responder, behavior=behavior, models=models, remember=True)
        self.port = port

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def received(self) -> list[ReceivedRequest]:
        """The requests for completions so far, oldest first."""
        return list(self.app.received)

    def inject(self, *faults: Fault) -> None:
        """From now on these faults, and no others."""
        self.app.inject(*faults)

    def start(self) -> Self:
        """Serve; returns once it answers."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name=TEST_MODEL_NAME, daemon=True)
        self._thread.start()
        if not ready.wait(START_TIMEOUT_S) or self._problems:
            raise RuntimeError(f"{TEST_MODEL_NAME} did not start") from next(iter(self._problems), None)
        return self

    def stop(self) -> None:
        """Answer nobody any more; what still waits ends, and connections are closed."""
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
        self._problems.clear()
        with catch_foreign(self._problems.append):
            asyncio.run(self._run(ready))
        ready.set()

    async def _run(self, ready: threading.Event) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            self.app.close()
            stop.set()

        def on_ready(line: str) -> None:
            self.port = int(line.partition(" ")[0].rpartition(":")[2])
            self._stop = lambda: loop.call_soon_threadsafe(end)
            ready.set()

        await serve_apps(
            [Site(self.app.site(token=self._token), "127.0.0.1", self.port, TEST_MODEL_NAME)],
            on_ready=on_ready,
            stop=stop,
        )


def _nothing() -> None:
    """Nothing to stop before the start."""

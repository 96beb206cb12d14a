"""The models of a profile, for batches: availability checks, and feedback to the gateway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runner.config import AgentSettings
from runner.errors import InferenceFault, catch_foreign
from runner.inference.endpoints import CHECK_TIMEOUT_S, NO_ENDPOINT
from runner.types import UNRATED
from runner.util.display_text import one_line

if TYPE_CHECKING:
    from runner.inference.gate import LocalGate
    from runner.inference.health import EndpointHealth
    from runner.inference.manager import InferenceManager
    from runner.store.episode_file import EpisodeRecord

_T = TypeVar("_T")


class NoModel(InferenceFault):
    def __init__(self, states: Sequence[EndpointHealth]) -> None:
        causes = "; ".join(f"{state.name}: {state.cause}" for state in states)
        super().__init__(f"no model answers: {causes or NO_ENDPOINT}")
        self.states = tuple(states)
        self.hint = "; ".join(f"{state.name}: {state.hint}" for state in states if state.hint)


class Models:
    """The models of a profile; create one object per process, because it holds the state of the endpoints."""

    def __init__(self, settings: AgentSettings, environ: Mapping[str, str]) -> None:
        """The first use of a model loads its client, so that runs without a model start fast."""
        self.settings = settings
        self._environ = dict(environ)
        self._lock = threading.Lock()
        self._manager: InferenceManager | None = None

    @property
    def manager(self) -> InferenceManager:
        with self._lock:
            if self._manager is None:
                from runner.inference.manager import InferenceManager

                self._manager = InferenceManager(self.settings, self._environ)
            return self._manager

    @property
    def gate(self) -> LocalGate:
        return self.manager.gate

    @property
    def names(self) -> list[str]:
        """The default model comes first."""
        settings = self.settings
        names = [settings.model, *(endpoint.model for endpoint in settings.endpoints), settings.local_fallback]
        return list(dict.fromkeys(filter(None, names)))

    def check(self, model: str | None = None, *, timeout_s: float = CHECK_TIMEOUT_S) -> list[EndpointHealth]:
        """This blocks the calling thread, so do not call it on the thread of an event loop."""
        return run_in_thread(lambda: self.manager.check(model, timeout_s=timeout_s))

    def each_alone(self) -> Iterator[InferenceManager]:
        """Yield a new manager of each endpoint alone, which knows nothing of earlier failures and lessons."""
        from runner.inference.manager import InferenceManager

        for endpoint in self.manager.endpoints:
            yield InferenceManager(self.settings, self._environ, only=endpoint.name)

    def require(self, model: str | None) -> list[EndpointHealth]:
        """Return the endpoints' health, none for ``model=None``; raises ``NoModel`` if no endpoint answers."""
        if model is None:
            return []
        states = self.check(model)
        if not any(map(is_answering, states)):
            raise NoModel(states)
        return states

    def feedback(self, episode: EpisodeRecord) -> None:
        """Send reward and success in the background, except of unscored episodes and outcomes in ``UNRATED``."""
        if episode.reward is None or self._manager is None:
            return
        if episode.outcome not in UNRATED and not episode.unscored:
            self.manager.feedback(episode.episode_id, episode.reward, episode.success)

    def close(self) -> None:
        if self._manager is not None:
            self.manager.close()


def run_in_thread(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine on a new thread with its own event loop, and return its result.

    The function does not wait for the event loop to close, because an unfinished name lookup may delay that for long.
    """
    import asyncio
    from concurrent.futures import Future

    result = Future[_T]()

    async def run() -> None:
        result.set_result(await work())

    def serve() -> None:
        with catch_foreign(lambda exc: None if result.done() else result.set_exception(exc)):
            asyncio.run(run())

    threading.Thread(target=serve, name="coroutine", daemon=True).start()
    return result.result()


def is_answering(state: EndpointHealth) -> bool:
    return state.status in ("up", "slow")


def describe_endpoint(state: EndpointHealth) -> str:
    kind = "" if state.kind == "auto" else f"{state.kind}, "
    return one_line(f"{state.name} ({kind}{state.url}, model {state.model})")

"""The models of a profile as batches use them: who is asked, whether anybody would answer, and what is told back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from runner.config import AgentSettings
from runner.errors import InferenceFault, catch_foreign
from runner.types import UNRATED
from runner.util.text import one_line

if TYPE_CHECKING:
    from runner.inference import EndpointHealth, InferenceManager
    from runner.store import EpisodeRecord

_T = TypeVar("_T")

NO_ENDPOINT = "the profile names no model to ask; set agent.api_endpoint or agent.local_fallback"


class NoModel(InferenceFault):
    """No endpoint would answer.

    Attributes:
        states: how each is, with its cause and what to do.
        hint: what to do, on one line.
    """

    def __init__(self, states: Sequence[EndpointHealth]) -> None:
        """Say of each endpoint why it would not."""
        causes = "; ".join(f"{state.name}: {state.cause}" for state in states)
        super().__init__(f"no model answers: {causes or NO_ENDPOINT}")
        self.states = tuple(states)
        self.hint = "; ".join(f"{state.name}: {state.hint}" for state in states if state.hint)


@dataclass(frozen=True)
class Models:
    """One for all batches of a process, which so share what is known of the endpoints."""

    settings: AgentSettings
    manager: InferenceManager

    @classmethod
    def of(cls, settings: AgentSettings, environ: Mapping[str, str]) -> Self:
        """Those of a profile's ``agent`` section; nobody is asked yet."""
        from runner.inference import InferenceManager  # this and the others not for commands that play nothing

        return cls(settings, InferenceManager.from_profile(settings, environ))

    @property
    def names(self) -> list[str]:
        """The models that the profile names, the one that plays by default first."""
        return model_names(self.settings)

    def check(self, model: str | None = None) -> list[EndpointHealth]:
        """How each endpoint is, in 2 seconds at most; from any thread but that of an event loop."""
        return run_in_thread(lambda: self.manager.check(model))

    def require(self, model: str | None) -> list[EndpointHealth]:
        """As ``check``, for a batch that is about to be played; None is played without any model.

        Raises:
            NoModel: when nobody would answer.
        """
        if model is None:
            return []
        states = self.check(model)
        if not any(map(is_answering, states)):
            raise NoModel(states)
        return states

    def feedback(self, record: EpisodeRecord) -> None:
        """Tell the gateway how an episode went, unless it was cut short by us; returns at once."""
        if record.outcome not in UNRATED:
            self.manager.feedback(record.episode_id, record.reward, record.success)

    def close(self) -> None:
        """Send the feedback that waits, for some seconds at most."""
        self.manager.close()


def run_in_thread(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """What a coroutine gives on an event loop and a thread of its own.

    Only the coroutine is waited for, not what its loop has left to do: a name that is being resolved may take long.
    """
    import asyncio

    results: list[_T] = []
    problems: list[BaseException] = []
    done = threading.Event()

    async def run() -> None:
        results.append(await work())
        done.set()

    def serve() -> None:
        with catch_foreign(problems.append):
            asyncio.run(run())
        done.set()

    threading.Thread(target=serve, name="asking", daemon=True).start()
    done.wait()
    if not results:
        raise problems[0]
    return results[0]


def model_names(settings: AgentSettings) -> list[str]:
    """The models that a profile names, the one that plays by default first."""
    named = [settings.model, *(endpoint.model for endpoint in settings.endpoints), settings.local_fallback]
    return list(dict.fromkeys(filter(None, named)))


def is_answering(state: EndpointHealth) -> bool:
    """Whether an endpoint would answer."""
    return state.status in ("up", "slow")


def describe_endpoint(state: EndpointHealth) -> str:
    """An endpoint by its name, what it is, where and for what it is asked."""
    kind = "" if state.kind == "auto" else f"{state.kind}, "
    return one_line(f"{state.name} ({kind}{state.url}, model {state.model})")

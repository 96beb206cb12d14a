"""What a person has played from here: who plays by default, and the last run to be repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.safe_text import SafeText, join, sanitize_message, trusted
from agentgym_tui.sessions.protocols import Control, ControlRequestError, Session
from agentgym_tui.state.models import BatchRun, EndpointState, EnvironmentState, Episode
from agentgym_tui.state.run_store import RunStore
from runner.events.control import StartArgs

MODELLESS_AGENTS: Final = frozenset({"oracle", "random", "scripted", "human"})
"""Agents that ask no model."""

FALLBACK_AGENT: Final = "oracle"
MAX_TOAST_CHARS: Final = 400
"""Characters of a refusal that are told in passing."""

_UNFINISHED: Final = frozenset({"queued", "running", "paused"})


class AgentChoice(NamedTuple):
    """Who plays when nothing was chosen; ``model`` None for the profile's, ``trouble`` why none does, hostile text."""

    agent: str
    model: str | None
    problem: str


def default_agent(store: RunStore) -> AgentChoice:
    """The first agent that asks a model, also where none answers: no other one steps in unasked."""
    return AgentChoice(next(iter(_model_agents(store)), FALLBACK_AGENT), None, model_problem(store))


def model_problem(store: RunStore) -> str:
    """Why no model can play, "" when one can."""
    if not store.agents:
        return "the node has not said yet which agents it has"
    if not _model_agents(store):
        return "no agent that asks a model is installed"
    if store.endpoints and all(endpoint.status in ("down", "wrong") for endpoint in store.endpoints.values()):
        unwell = (f"{_host(at)} {it.status}" + f": {it.cause}" * bool(it.cause) for at, it in _first_endpoints(store))
        return "no model is reachable: " + "; ".join(unwell)
    return ""


def startable_agents(store: RunStore) -> list[str]:
    """What can be chosen: all but those that need more than a name; the oracle is always among them."""
    agents = [agent for agent in store.agents if agent not in ("scripted", "human")]
    return agents if FALLBACK_AGENT in agents else [*agents, FALLBACK_AGENT]


class EnvironmentBattery(NamedTuple):
    """A battery: the environments that can be played now, and those that cannot."""

    name: str
    envs: list[str]
    excluded: list[EnvironmentState]


def list_batteries(store: RunStore) -> list[EnvironmentBattery]:
    """The batteries: each tier, then all of them."""
    found: dict[str, EnvironmentBattery] = {}
    for env in store.envs.values():
        if env.tier:
            tier = found.setdefault(env.tier, EnvironmentBattery(env.tier, [], []))
            if is_runnable(env):
                tier.envs.append(env.name)
            else:
                tier.excluded.append(env)
    if len(found) < 2:
        return list(found.values())
    envs = [name for tier in found.values() for name in tier.envs]
    return [
        *found.values(),
        EnvironmentBattery("everything", envs, [env for tier in found.values() for env in tier.excluded]),
    ]


def is_runnable(env: EnvironmentState) -> bool:
    """Whether it may be, as far as is known; ``wrong`` is a server's, which an embedded one does without."""
    return env.status != "down" and not (env.status == "wrong" and env.transport == "http")


def unfinished_batches(store: RunStore) -> list[BatchRun]:
    """Batches that are played or will be."""
    return [batch for batch in store.batches.values() if batch.status in _UNFINISHED]


def command_targets(batches: Sequence[BatchRun]) -> list[str]:
    """What to name in an order for all of them: a battery once."""
    return list(dict.fromkeys(batch.battery_id or batch.batch_id for batch in batches))


def control_error_text(refused: ControlRequestError) -> SafeText:
    """Why something was not done, and what to do about it."""
    hint = [trusted("\n"), sanitize_message(refused.hint, MAX_TOAST_CHARS)] if refused.hint else []
    return join([sanitize_message(str(refused), MAX_TOAST_CHARS), *hint])


class RunCommands:
    """Orders to the session's node; all raise ``ControlRequestError``.

    Args:
        session: whose node it is.
        new_id: makes an id for a run.

    Attributes:
        last: what was started last, with success.
    """

    def __init__(self, session: Session, new_id: Callable[[], str] | None = None) -> None:
        self._session = session
        self.new_id = new_id or _new_id
        self.last_run: StartArgs | None = None

    def agent_choice(self) -> AgentChoice:
        """Who plays: as before, else by default."""
        if self.last_run is not None and self.last_run.agent is not None:
            return AgentChoice(self.last_run.agent, self.last_run.model, "")
        return default_agent(self._session.store)

    def single_run(self, envs: Sequence[str]) -> StartArgs:
        """Each environment once."""
        player = self.agent_choice()
        return StartArgs(batch_id=self.new_id(), envs=list(envs), agent=player.agent, model=player.model)

    def repeat_run(self, keys: Sequence[str]) -> StartArgs:
        """What was started last, as a new run; ``keys`` are those that start one."""
        if self.last_run is None:
            raise ControlRequestError("nothing was started from here yet", f"press {' or '.join(keys)}")
        return msgspec.structs.replace(self.last_run, batch_id=self.new_id())

    async def start(self, args: StartArgs) -> None:
        """Play."""
        await self.control.start(args)
        self.last_run = args

    async def pause_or_resume(self, batch: BatchRun) -> str:
        """Returns what was done."""
        if batch.status == "paused":
            await self.control.command("resume", batch_id=batch.batch_id)
            return "goes on"
        await self.control.command("pause", batch_id=batch.batch_id)
        return "pauses after this step"

    async def step(self, episode: Episode) -> None:
        """One step of an episode."""
        await self.control.command("step", episode_id=episode.episode_id)

    async def cancel(self, run_ids: Sequence[str]) -> None:
        """Batches or batteries."""
        for run_id in run_ids:
            await self.control.command("cancel", batch_id=run_id)

    @property
    def control(self) -> Control:
        """Who is asked."""
        if self._session.read_only or self._session.control is None:
            raise ControlRequestError(self._session.read_only or "there is no node to ask")
        return self._session.control


def _model_agents(store: RunStore) -> list[str]:
    return [agent for agent in store.agents if agent not in MODELLESS_AGENTS]


def _first_endpoints(store: RunStore) -> list[tuple[str, EndpointState]]:
    return list(store.endpoints.items())[:3]


def _host(endpoint: str) -> str:
    """Of an address what tells it from others; a name as it is."""
    scheme, mark, rest = endpoint.partition("://")
    return rest.partition("/")[0].rpartition("@")[2] if mark else scheme


def _new_id() -> str:
    from ulid import ULID  # not before something is started: it takes its time to import

    return str(ULID())

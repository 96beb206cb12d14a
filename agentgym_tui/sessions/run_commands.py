"""What a person has played from here: who plays by default, and the last run to be repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.safe_text import Safe, join, message, own
from agentgym_tui.sessions.protocols import Control, ControlFailed, Session
from agentgym_tui.state.models import BatchRun, Endpoint, Environment, Episode
from agentgym_tui.state.run_store import RunStore
from runner.events.control import StartArgs

BASELINES: Final = frozenset({"oracle", "random", "scripted", "human"})
"""Agents that ask no model."""

FALLBACK: Final = "oracle"
MAX_TOLD: Final = 400
"""Characters of a refusal that are told in passing."""

_WAITING: Final = frozenset({"queued", "running", "paused"})


class Player(NamedTuple):
    """Who plays when nothing was chosen; ``model`` None for the profile's, ``trouble`` why none does, hostile text."""

    agent: str
    model: str | None
    trouble: str


def default_player(store: RunStore) -> Player:
    """The first agent that asks a model, also where none answers: no other one steps in unasked."""
    return Player(next(iter(_model_agents(store)), FALLBACK), None, model_trouble(store))


def model_trouble(store: RunStore) -> str:
    """Why no model can play, "" when one can."""
    if not store.agents:
        return "the node has not said yet which agents it has"
    if not _model_agents(store):
        return "no agent that asks a model is installed"
    if store.models and all(endpoint.status in ("down", "wrong") for endpoint in store.models.values()):
        unwell = (f"{_host(at)} {it.status}" + f": {it.cause}" * bool(it.cause) for at, it in _few(store))
        return "no model is reachable: " + "; ".join(unwell)
    return ""


def startable_agents(store: RunStore) -> list[str]:
    """What can be chosen: all but those that need more than a name; the oracle is always among them."""
    agents = [agent for agent in store.agents if agent not in ("scripted", "human")]
    return agents if FALLBACK in agents else [*agents, FALLBACK]


class Tier(NamedTuple):
    """A battery: the environments that can be played now, and those that cannot."""

    name: str
    envs: list[str]
    left_out: list[Environment]


def tiers(store: RunStore) -> list[Tier]:
    """The batteries: each tier, then all of them."""
    found: dict[str, Tier] = {}
    for env in store.envs.values():
        if env.tier:
            tier = found.setdefault(env.tier, Tier(env.tier, [], []))
            if can_be_played(env):
                tier.envs.append(env.name)
            else:
                tier.left_out.append(env)
    if len(found) < 2:
        return list(found.values())
    envs = [name for tier in found.values() for name in tier.envs]
    return [*found.values(), Tier("everything", envs, [env for tier in found.values() for env in tier.left_out])]


def can_be_played(env: Environment) -> bool:
    """Whether it may be, as far as is known; ``wrong`` is a server's, which an embedded one does without."""
    return env.status != "down" and not (env.status == "wrong" and env.transport == "http")


def waiting(store: RunStore) -> list[BatchRun]:
    """Batches that are played or will be."""
    return [batch for batch in store.batches.values() if batch.status in _WAITING]


def targets(batches: Sequence[BatchRun]) -> list[str]:
    """What to name in an order for all of them: a battery once."""
    return list(dict.fromkeys(batch.battery_id or batch.batch_id for batch in batches))


def refusal_text(refused: ControlFailed) -> Safe:
    """Why something was not done, and what to do about it."""
    hint = [own("\n"), message(refused.hint, MAX_TOLD)] if refused.hint else []
    return join([message(str(refused), MAX_TOLD), *hint])


class Orders:
    """Orders to the session's node; all raise ``ControlFailed``.

    Args:
        session: whose node it is.
        new_id: makes an id for a run.

    Attributes:
        last: what was started last, with success.
    """

    def __init__(self, session: Session, new_id: Callable[[], str] | None = None) -> None:
        self._session = session
        self.new_id = new_id or _new_id
        self.last: StartArgs | None = None

    def player(self) -> Player:
        """Who plays: as before, else by default."""
        if self.last is not None and self.last.agent is not None:
            return Player(self.last.agent, self.last.model, "")
        return default_player(self._session.store)

    def once(self, envs: Sequence[str]) -> StartArgs:
        """Each environment once."""
        player = self.player()
        return StartArgs(batch_id=self.new_id(), envs=list(envs), agent=player.agent, model=player.model)

    def again(self, keys: Sequence[str]) -> StartArgs:
        """What was started last, as a new run; ``keys`` are those that start one."""
        if self.last is None:
            raise ControlFailed("nothing was started from here yet", f"press {' or '.join(keys)}")
        return msgspec.structs.replace(self.last, batch_id=self.new_id())

    async def start(self, args: StartArgs) -> None:
        """Play."""
        await self.control.start(args)
        self.last = args

    async def pause_or_resume(self, batch: BatchRun) -> str:
        """Returns what was done."""
        if batch.status == "paused":
            await self.control.order("resume", batch_id=batch.batch_id)
            return "goes on"
        await self.control.order("pause", batch_id=batch.batch_id)
        return "pauses after this step"

    async def step(self, episode: Episode) -> None:
        """One step of an episode."""
        await self.control.order("step", episode_id=episode.episode_id)

    async def cancel(self, run_ids: Sequence[str]) -> None:
        """Batches or batteries."""
        for run_id in run_ids:
            await self.control.order("cancel", batch_id=run_id)

    @property
    def control(self) -> Control:
        """Who is asked."""
        if self._session.read_only or self._session.control is None:
            raise ControlFailed(self._session.read_only or "there is no node to ask")
        return self._session.control


def _model_agents(store: RunStore) -> list[str]:
    return [agent for agent in store.agents if agent not in BASELINES]


def _few(store: RunStore) -> list[tuple[str, Endpoint]]:
    return list(store.models.items())[:3]


def _host(endpoint: str) -> str:
    """Of an address what tells it from others; a name as it is."""
    scheme, mark, rest = endpoint.partition("://")
    return rest.partition("/")[0].rpartition("@")[2] if mark else scheme


def _new_id() -> str:
    from ulid import ULID  # not before something is started: it takes its time to import

    return str(ULID())

"""Commands of the user to the node: default agent, batteries, starting, pausing and canceling runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.safe_text import SafeText, join, sanitize_message, trusted
from agentgym_tui.sessions.protocols import Control, ControlRequestError, Session
from agentgym_tui.state.data_model import BatchRun, EndpointState, EnvironmentState, Episode
from agentgym_tui.state.run_store import RunStore
from runner.events.control import StartArgs

MODELLESS_AGENTS: Final = frozenset({"oracle", "random", "scripted", "human"})
"""Agents that use no model."""

FALLBACK_AGENT: Final = "oracle"
"""Agent that is started where no agent with a model is installed."""

MAX_TOAST_CHARS: Final = 400
"""Characters of an error that a toast shows."""

_UNFINISHED: Final = frozenset({"queued", "running", "paused"})


class AgentChoice(NamedTuple):
    """Agent and model of a run.

    Attributes:
        model: model name; None for the profile's.
        problem: why no model can be used, untrusted text; "" where one can.
    """

    agent: str
    model: str | None
    problem: str


def default_agent(store: RunStore) -> AgentChoice:
    """Return the first agent that uses a model, even where no model is reachable.

    No agent without a model ever replaces it unless the user chooses one.
    """
    return AgentChoice(next(iter(_model_agents(store)), FALLBACK_AGENT), None, model_problem(store))


def model_problem(store: RunStore) -> str:
    """Return why no model can be used, "" where one can."""
    if not store.agents:
        return "waiting for the node's list of agents"
    if not _model_agents(store):
        return "no agent that uses a model is installed"
    if store.endpoints and all(endpoint.status in ("down", "wrong") for endpoint in store.endpoints.values()):
        causes = [_host(name) + " " + _cause(endpoint) for name, endpoint in _first_endpoints(store)]
        return "no model is reachable: " + "; ".join(causes)
    return ""


def startable_agents(store: RunStore) -> list[str]:
    """Return the agents that can be started by name alone; the oracle is always among them."""
    agents = [agent for agent in store.agents if agent not in ("scripted", "human")]
    return agents if FALLBACK_AGENT in agents else [*agents, FALLBACK_AGENT]


class EnvironmentBattery(NamedTuple):
    """A battery of environments.

    Attributes:
        envs: environments that can be run now.
        excluded: environments that cannot.
    """

    name: str
    envs: list[str]
    excluded: list[EnvironmentState]


def list_batteries(store: RunStore) -> list[EnvironmentBattery]:
    """Return a battery per tier, then one of all environments."""
    batteries: dict[str, EnvironmentBattery] = {}
    for env in store.envs.values():
        if env.tier:
            battery = batteries.setdefault(env.tier, EnvironmentBattery(env.tier, [], []))
            if is_runnable(env):
                battery.envs.append(env.name)
            else:
                battery.excluded.append(env)
    if len(batteries) < 2:
        return list(batteries.values())
    envs = [name for battery in batteries.values() for name in battery.envs]
    return [
        *batteries.values(),
        EnvironmentBattery("everything", envs, [env for battery in batteries.values() for env in battery.excluded]),
    ]


def is_runnable(env: EnvironmentState) -> bool:
    """Return whether an environment can be run; status ``wrong`` concerns a server and not an embedded environment."""
    return env.status != "down" and not (env.status == "wrong" and env.transport == "http")


def unfinished_batches(store: RunStore) -> list[BatchRun]:
    """Return the batches that are queued, running or paused."""
    return [batch for batch in store.batches.values() if batch.status in _UNFINISHED]


def command_targets(batches: Sequence[BatchRun]) -> list[str]:
    """Return the ids to name in a command for some batches; the batches of a battery share one."""
    return list(dict.fromkeys(batch.battery_id or batch.batch_id for batch in batches))


def control_error_text(error: ControlRequestError) -> SafeText:
    """Return the message and hint of an error for a toast."""
    hint = [trusted("\n"), sanitize_message(error.hint, MAX_TOAST_CHARS)] if error.hint else []
    return join([sanitize_message(str(error), MAX_TOAST_CHARS), *hint])


class RunCommands:
    """Sends commands to the node of a session; all methods raise ``ControlRequestError``.

    Args:
        session: the session.
        new_id: makes the id of a run; a new ULID by default.

    Attributes:
        last_run: the last run that was started successfully.
    """

    def __init__(self, session: Session, new_id: Callable[[], str] | None = None) -> None:
        self._session = session
        self.new_id = new_id or _new_id
        self.last_run: StartArgs | None = None

    def agent_choice(self) -> AgentChoice:
        """Return agent and model of the last run, else the defaults."""
        if self.last_run is not None and self.last_run.agent is not None:
            return AgentChoice(self.last_run.agent, self.last_run.model, "")
        return default_agent(self._session.store)

    def single_run(self, envs: Sequence[str]) -> StartArgs:
        """Return a run of each environment once."""
        choice = self.agent_choice()
        return StartArgs(batch_id=self.new_id(), envs=list(envs), agent=choice.agent, model=choice.model)

    def repeat_run(self, keys: Sequence[str]) -> StartArgs:
        """Return a copy of the last run with a new id; ``keys`` start a first run, for the hint."""
        if self.last_run is None:
            raise ControlRequestError("nothing has been started from here yet", f"press {' or '.join(keys)}")
        return msgspec.structs.replace(self.last_run, batch_id=self.new_id())

    async def start(self, args: StartArgs) -> None:
        """Start a run."""
        await self.control.start(args)
        self.last_run = args

    async def pause_or_resume(self, batch: BatchRun) -> str:
        """Pause or resume a batch; return what was done."""
        if batch.status == "paused":
            await self.control.command("resume", batch_id=batch.batch_id)
            return "resumed"
        await self.control.command("pause", batch_id=batch.batch_id)
        return "pauses after this step"

    async def step(self, episode: Episode) -> None:
        """Run one step of a paused episode."""
        await self.control.command("step", episode_id=episode.episode_id)

    async def cancel(self, run_ids: Sequence[str]) -> None:
        """Cancel batches or batteries."""
        for run_id in run_ids:
            await self.control.command("cancel", batch_id=run_id)

    @property
    def control(self) -> Control:
        """The session's connection to its node."""
        if self._session.read_only or self._session.control is None:
            raise ControlRequestError(self._session.read_only or "there is no node to control")
        return self._session.control


def _model_agents(store: RunStore) -> list[str]:
    return [agent for agent in store.agents if agent not in MODELLESS_AGENTS]


def _first_endpoints(store: RunStore) -> list[tuple[str, EndpointState]]:
    return list(store.endpoints.items())[:3]


def _cause(endpoint: EndpointState) -> str:
    return f"{endpoint.status}: {endpoint.cause}" if endpoint.cause else endpoint.status


def _host(endpoint: str) -> str:
    scheme, mark, rest = endpoint.partition("://")
    return rest.partition("/")[0].rpartition("@")[2] if mark else scheme


def _new_id() -> str:
    from ulid import ULID  # imported on the first start, because the import is slow

    return str(ULID())

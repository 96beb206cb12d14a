"""Commands from the user to the node: choose the agent, list batteries, and start, pause and cancel runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.sessions.control_client import NodeControl
from agentgym_tui.sessions.protocols import ControlRequestError, RunCommand, Session
from agentgym_tui.state.data_model import BatchRun, EnvironmentState, Episode
from agentgym_tui.state.endpoints import EndpointState
from agentgym_tui.state.run_store import RunStore
from runner.events.control import AnnotateArgs, ReplayArgs, StartArgs
from runner.types.notes import MAX_TAG_CHARS, Note
from runner.util.clock import new_ulid

DEFAULT_AGENT: Final = "react"
"""The agent of a first run, as of the command line."""
MODELLESS_AGENTS: Final = frozenset({"oracle", "random", "scripted"})
"""Agents that use no model."""

FALLBACK_AGENT: Final = "oracle"
"""Name of the agent that is chosen by default where no agent that uses a model is installed."""

_SEPARATORS: Final = re.compile(r"[\s,]+")
MAX_TOAST_CHARS: Final = 400
"""Largest number of characters of an error that a toast shows."""

_UNFINISHED: Final = frozenset({"queued", "running", "paused"})


class AgentChoice(NamedTuple):
    """Agent and model of a run.

    Attributes:
        agent: name of the agent.
        model: name of the model; None for the default model of the profile.
        problem: why no model can be used; "" where a model can be used. The text is untrusted.
    """

    agent: str
    model: str | None
    problem: str


def default_agent(store: RunStore) -> AgentChoice:
    """Return ``react``, or another installed agent that uses a model, or the oracle where there is none.

    An agent that uses a model is returned even where no model is reachable: only the user may replace it by an agent
    without a model.
    """
    return AgentChoice(next(iter(_model_agents(store)), FALLBACK_AGENT), None, model_problem(store))


def model_problem(store: RunStore) -> str:
    """Return why no model can be used, as untrusted text; "" where a model can be used."""
    if not store.agents:
        return "waiting for the node's list of agents"
    if not _model_agents(store):
        return "no agent that uses a model is installed"
    if store.endpoints and all(endpoint.status in ("down", "wrong") for endpoint in store.endpoints.values()):
        causes = [_host(name) + " " + _cause(endpoint) for name, endpoint in list(store.endpoints.items())[:3]]
        return "no model is reachable: " + "; ".join(causes)
    return ""


def startable_agents(store: RunStore) -> list[str]:
    """Return the agents that can be started without further input; the oracle is always included."""
    agents = [agent for agent in store.agents if agent != "scripted"]
    return agents if FALLBACK_AGENT in agents else [*agents, FALLBACK_AGENT]


class EnvironmentBattery(NamedTuple):
    """A battery: environments that are run together.

    Attributes:
        name: tier of the environments, or ``everything``.
        envs: names of the environments that can be run now.
        excluded: environments that cannot be run now.
    """

    name: str
    envs: list[str]
    excluded: list[EnvironmentState]


def list_batteries(store: RunStore) -> list[EnvironmentBattery]:
    """Return one battery per tier and, where there are several tiers, one battery of all environments."""
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
    """Return whether an environment can be run; status ``wrong`` prevents that only where it runs on a server."""
    return env.status != "down" and not (env.status == "wrong" and env.transport == "http")


def unfinished_batches(store: RunStore) -> list[BatchRun]:
    """Return the batches that are queued, running or paused."""
    return [batch for batch in store.batches.values() if batch.status in _UNFINISHED]


def can_pause(batch: BatchRun) -> bool:
    """Return whether a batch runs, or waits and starts when its turn comes."""
    return batch.status == "running" or (batch.status == "queued" and not batch.is_held)


def can_resume(batch: BatchRun) -> bool:
    """Return whether a batch is paused, was paused while it waits, or was interrupted."""
    return batch.status in ("paused", "interrupted") or (batch.status == "queued" and batch.is_held)


def reachable_batches(store: RunStore) -> list[BatchRun]:
    """Return the batches that are queued, running or paused on a node that is not lost."""
    return [batch for batch in unfinished_batches(store) if not store.is_lost(batch)]


def has_unfinished(session: Session) -> bool:
    """Return whether this console may stop runs and some batch is still running or waiting."""
    return not session.read_only and session.control is not None and bool(reachable_batches(session.store))


def command_targets(batches: Sequence[BatchRun]) -> list[str]:
    """Return the distinct ids for a command on ``batches``: the battery id where a batch has one, else the batch id."""
    return list(dict.fromkeys(batch.battery_id or batch.batch_id for batch in batches))


def control_error_text(error: ControlRequestError) -> str:
    """Return the sanitized message and hint of an error, each short enough for a toast."""
    hint = ["\n", sanitize_message(error.hint, MAX_TOAST_CHARS)] if error.hint else []
    return "".join([sanitize_message(str(error), MAX_TOAST_CHARS), *hint])


class RunCommands:
    """Sends commands to the node of a session. Methods that send raise ``ControlRequestError`` on failure.

    Args:
        session: the session.
        new_id: returns the id for a new run; returns a new ULID by default.

    Attributes:
        last_run: start request of the last run that was started; None before the first run.
    """

    def __init__(self, session: Session, new_id: Callable[[], str] | None = None) -> None:
        self._session = session
        self.new_id = new_id or new_ulid
        self.last_run: StartArgs | None = None

    def agent_choice(self) -> AgentChoice:
        """Return the agent and model of the last run, or the defaults before the first run."""
        if self.last_run is not None and self.last_run.agent is not None:
            return AgentChoice(self.last_run.agent, self.last_run.model, "")
        return default_agent(self._session.store)

    def single_run(self, envs: Sequence[str]) -> StartArgs:
        """Return a start request that runs one episode in each environment."""
        choice = self.agent_choice()
        return StartArgs(batch_id=self.new_id(), envs=list(envs), agent=choice.agent, model=choice.model)

    def repeat_run(self, keys: Sequence[str]) -> StartArgs:
        """Return a start request like that of the last run, with a new id.

        Args:
            keys: keys that start a first run; named in the hint of the error.

        Raises:
            ControlRequestError: no run has been started yet.
        """
        if self.last_run is None:
            raise ControlRequestError("nothing has been started from here yet", f"press {' or '.join(keys)}")
        return msgspec.structs.replace(self.last_run, batch_id=self.new_id())

    async def start(self, args: StartArgs) -> list[str]:
        """Start a run and remember it as ``last_run``; return the node's distinct warnings, as untrusted texts."""
        batches = await self.control.start(args)
        self.last_run = args
        self._session.store.apply_batches(batches)
        return list(dict.fromkeys(batch.warning for batch in batches if batch.warning))

    async def pause_or_resume(self, run_id: str, batches: Sequence[BatchRun]) -> tuple[list[BatchRun], str]:
        """Pause what can be paused of a run; if nothing can, resume what can be resumed.

        Returns:
            The batches for which that has an effect, and the effect; no batches where nothing was sent.
        """
        command: Literal["pause", "resume"] = "pause" if any(map(can_pause, batches)) else "resume"
        targets = list(filter(can_pause if command == "pause" else can_resume, batches))
        is_running = any(batch.status == "running" for batch in targets)
        if targets:
            await self.control.command(command, batch_id=run_id)
        return targets, "resumed" if command == "resume" else "paused after this step" if is_running else "paused"

    async def replay(self, run_id: str, only: Literal["errors", "all"]) -> int:
        """Play a batch or battery again, or only what ended with an error; return the number of episodes."""
        args = ReplayArgs(batch_id=run_id, only=only, new_batch_id=self.new_id())
        batches = await self.control.replay(args)
        self._session.store.apply_batches(batches)
        return sum(batch.n_planned for batch in batches)

    async def step(self, episode: Episode) -> None:
        """Run one step of a paused episode."""
        await self.control.command("step", episode_id=episode.episode_id)

    async def cancel(self, batches: Sequence[BatchRun]) -> None:
        """Cancel one batch by its id, or several by that of their battery."""
        for run_id in [batches[0].batch_id] if len(batches) == 1 else command_targets(batches):
            await self.control.command("cancel", batch_id=run_id)

    async def command_all(self, command: RunCommand) -> None:
        """Pause or cancel all that runs or waits, also what is not listed, or resume all that is paused."""
        await self.control.command_all(command)

    @property
    def control(self) -> NodeControl:
        """Client for requests to the node; raises ``ControlRequestError`` where commands are not allowed."""
        if self._session.read_only or self._session.control is None:
            raise ControlRequestError(self._session.read_only or "there is no node to control")
        return self._session.control


def split_tags(text: str) -> list[str]:
    """Return the words of a typed text, each once."""
    return list(dict.fromkeys(filter(None, _SEPARATORS.split(text))))


async def annotate(session: Session, args: AnnotateArgs) -> Sequence[Note]:
    """Change the tags and notes of an episode or a step, show its tags, and return all that the episode has.

    Raises:
        ControlRequestError: the node cannot be reached, or refuses the change.
    """
    if session.read_only or session.control is None:
        raise ControlRequestError(session.read_only or "there is no node that keeps the notes of this episode")
    args.author = os.environ.get("USER", "")[:MAX_TAG_CHARS] or None
    notes = await session.control.annotate(args)
    episode_id, tags = args.episode_id, tags_of(notes)
    others = {known: each for known, each in session.store.tags.items() if known != episode_id}
    session.store.apply_tags({**others, episode_id: tags} if tags else others)
    return notes


def tags_of(notes: Sequence[Note]) -> tuple[str, ...]:
    """Return the tags of an episode and its steps in alphabetical order."""
    return tuple(sorted({note.text for note in notes if note.kind == "tag"}))


def _model_agents(store: RunStore) -> list[str]:
    agents = [agent for agent in store.agents if agent not in MODELLESS_AGENTS]
    return sorted(agents, key=lambda agent: agent != DEFAULT_AGENT)


def _cause(endpoint: EndpointState) -> str:
    return f"{endpoint.status}: {endpoint.cause}" if endpoint.cause else endpoint.status


def _host(endpoint: str) -> str:
    scheme, mark, rest = endpoint.partition("://")
    return rest.partition("/")[0].rpartition("@")[2] if mark else scheme

"""An environment that is played on a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from runner.envs.base import as_reply_messages
from runner.envs.http.address import ServerAddress
from runner.envs.http.dialects import ClientDialect, create_env_dialect, dialect_for, webshop_actions
from runner.envs.http.response import Payload
from runner.envs.http.session import RemoteInstance
from runner.envs.http.task_rules import RewardReader, count_tasks, rules_for
from runner.errors import ConfigError, EnvironmentFault
from runner.types import Action, Chat, InvalidAction, MaybeAwaitable, Mode, StepResult, ToolSchema, Trajectory

MAX_REQUEST_BYTES = 512 << 10
"""Bytes of a step's request; a text that needs more is no action, and is not sent."""
_LISTED = "Available actions: "


class HttpEnvironment:
    """One instance on an environment's server; its requests never overlap.

    A request that fails ends the episode: ``step`` raises until the next ``reset``, as nobody knows whether the server
    took it.

    Args:
        env: the environment's name, in any case.
        address: where its server is, and how long a request may take.
        mode: by which rules that server plays; AgentGym's own are ``compat``.
    """

    def __init__(self, *, env: str, address: ServerAddress, mode: Mode = "strict") -> None:
        """Prepare an instance; nothing is sent before ``reset``.

        Raises:
            ConfigError: for an environment or an address that nothing can be played with.
        """
        self._dialect = _dialect(env, address)
        self._rules = rules_for(self._dialect, mode)
        self._instance = RemoteInstance(self._dialect, address)
        self._scoring = RewardReader(self._dialect)
        self._lock = asyncio.Lock()
        self._running = False
        self._observation = self._opening = ""
        self._lists_actions = address.lists_actions
        self.n_tasks = address.n_tasks or count_tasks(self._dialect, mode, self._rules)
        self.task_index = 0
        self._episode_id = ""

    async def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: Any) -> Chat:  # noqa: ANN401
        """Start a task; ``seed`` and the task description in ``extra`` change nothing here.

        Raises:
            EnvironmentFault: where the server cannot be reached, or answers with an error or nonsense.
        """
        async with self._lock:
            self._running = False
            self.task_index = task_index % self.n_tasks
            if self._dialect.fresh:
                await self._instance.close()
            if self._instance.id is None:
                await self._instance.open(self.task_index)
            self._episode_id = f"{self._dialect.name}-{self.task_index}@{self._instance.id}"
            self._scoring = RewardReader(self._dialect)
            payload = await self._instance.reset(self.task_index)
            *parts, last = self._dialect.opening
            opening = [payload.text(part) for part in parts if payload.has(part)]
            self._observation = self._shown("\n".join([*opening, payload.text(last)]), payload)
            self._opening = self._observation
            self._running = True
            return [{"role": "user", "content": self._observation}]

    async def step(self, action: Action) -> StepResult:
        """Take one action.

        A tool call that does not fit its schema, and a text that is too long to be sent, are answered here with what
        was expected and leave the task as it was.

        Raises:
            EnvironmentFault: outside an episode, and as ``reset`` does; then the episode is over.
        """
        async with self._lock:
            if not self._running:
                raise EnvironmentFault(f"{self._dialect.name} was asked to step outside an episode; call reset first")
            command = self._command(action)
            if isinstance(command, InvalidAction):
                return as_reply_messages(action, f"Invalid action. Expected {command.expected}."), 0.0, False
            self._running = False
            payload = await self._instance.step(command)
            text = payload.text(self._dialect.observation_at)
            reward, done = self._scoring.read(payload, text)
            self._observation = self._shown(text, payload)
            self._running = not done
            return as_reply_messages(action, self._observation), reward, done

    def get_tool_schemas(self) -> list[ToolSchema]:
        """The environment's commands as tools."""
        return self._rules.grammar.schemas

    def get_episode_id(self) -> str:
        """The environment, the task index and what the server calls the instance, e.g. ``Maze-3@17``."""
        return self._episode_id

    def admissible_actions(self) -> MaybeAwaitable[list[str] | None]:
        """Valid action texts, or None where they are not known; the server is asked where only it knows them.

        Raises:
            EnvironmentFault: as ``reset`` does.
        """
        match self._dialect.actions:
            case "shown":
                return _listed(self._observation)
            case "rules":
                return self._rules.admissible_actions()
            case None if not (self._lists_actions or self._dialect.page_at):
                return None
        return self._asked_actions()

    def parse(self, text: str) -> Action | InvalidAction:
        """The tool call that an action text means."""
        return self._rules.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the goal was reached, by this environment's own rule."""
        return self._rules.success(trajectory)

    @property
    def truncated(self) -> bool:
        """Whether the server ended the episode by a limit of its own."""
        return self._scoring.truncated

    async def cleanup(self) -> None:
        """Close the instance, within bounded time, and the connections; the environment can be reset again."""
        self._running = False
        try:
            await self._instance.close()
        finally:
            await self._instance.disconnect()

    async def _asked_actions(self) -> list[str] | None:
        async with self._lock:
            if not self._running:
                return None
            if self._lists_actions:
                payload = await self._instance.look("/admissible")
                return payload.texts(()) if payload.has(()) else None
            if self._dialect.page_at is not None:
                page = await self._instance.look(self._dialect.page_at)
                bar, clickables = page.flag(("has_search_bar",)), page.texts(("clickables",))
                return webshop_actions(self._opening, has_search_bar=bar, clickables=clickables)
        return self._dialect.actions(self._opening) if callable(self._dialect.actions) else None

    def _command(self, action: Action) -> str | InvalidAction:
        """What to send for an action."""
        if action.tool_calls:
            command = self._rules.grammar.render(action.tool_calls[0])
        else:
            command = self._meant(action.text or "")
        if isinstance(command, str) and self._instance.request_size(command) > MAX_REQUEST_BYTES:
            return InvalidAction("", "a shorter text")
        return command

    def _meant(self, text: str) -> str | InvalidAction:
        parsed = self._rules.parse(text) if self._dialect.sends_meaning else None
        return self._rules.grammar.render(parsed.tool_calls[0]) if isinstance(parsed, Action) else text

    def _shown(self, observation: str, payload: Payload) -> str:
        if self._dialect.actions_at is None:
            return observation
        return f"{observation}\n{_LISTED}{json.dumps(payload.texts(self._dialect.actions_at))}"


def _dialect(env: str, address: ServerAddress) -> ClientDialect:
    if address.dialect == "createEnv":
        return create_env_dialect(env)
    if (dialect := dialect_for(env)) is None:
        raise ConfigError(f"It is not known how a server of {env!r} is spoken to; play it embedded")
    return dialect


def _listed(observation: str) -> list[str] | None:
    """The actions that the last line of an observation lists."""
    line = observation.rpartition("\n")[2]
    if not line.startswith(_LISTED):
        return None
    try:
        return msgspec.json.decode(line.removeprefix(_LISTED), type=list[str])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None

"""Environment that runs on a server, ``HttpEnvironment``, and its rules: commands, tasks, success and rewards."""

from __future__ import annotations

import asyncio
import json
import pkgutil
import re
from typing import Any, TypeAlias

import msgspec

from runner.envs.base import CommandPattern, EmbeddedEnvironment, Grammar, as_reply_messages, is_lost_click, is_refusal
from runner.envs.http.client import DEFAULT_TIMINGS, HttpTimings, RemoteInstance
from runner.envs.http.dialects import ClientDialect, create_env_dialect, dialect_for
from runner.envs.http.response import JsonPath, Payload
from runner.envs.http.server import ServerAddress
from runner.errors import ConfigError, EnvironmentFault, ServerGone
from runner.types import (
    Action,
    Cells,
    Chat,
    InvalidAction,
    MaybeAwaitable,
    Mode,
    Rejection,
    StepResult,
    ToolSchema,
    Trajectory,
)
from runner.util.display_text import first_difference

UNKNOWN_N_TASKS = 2**31
"""Assumed number of tasks if the server's number is unknown. The server rejects a task index that it does not have."""
MAX_REQUEST_BYTES = 512 << 10
"""Maximum size of the body of a step request, in bytes. A longer action text is invalid and is not sent."""
PICTURE_TIMEOUT_S = 2.0
"""Maximum duration of a request for a picture, in seconds; the episode continues without it."""
_ACTIONS_PREFIX = "Available actions: "
_ROUNDING_TOLERANCE = 1e-9
_COMPLETED_TEXT = "The task is completed."
"""BabyAI's server (``agentenv_babyai/environment.py``) resets ``done`` after a success with a reward up to 0.5."""
_TRUNCATED_PATH: JsonPath = ("truncated",)


class FreeTextRules:
    """Rules of an environment without an embedded class: one tool, ``act``, that takes any text."""

    def __init__(self, dialect: ClientDialect) -> None:
        self.n_tasks = UNKNOWN_N_TASKS
        self._dialect = dialect
        act = CommandPattern(
            name="act",
            description=f"Act in {dialect.name}. Expects {dialect.expected}.",
            template="{text}",
            pattern=re.compile(r"(?P<text>.*\S.*)", re.DOTALL),
            parameters={"text": {"type": "string", "description": dialect.expected}},
        )
        self.grammar = Grammar([act], expected=dialect.expected)

    def parse(self, text: str) -> Action | InvalidAction:
        return self.grammar.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        """Return whether a reward, or the sum of rewards if the server reports sums, reached the dialect's ``best``."""
        rewards = [step.reward for step in trajectory.timesteps]
        reached = sum(rewards) if self._dialect.reward == "total" else max(rewards, default=0.0)
        return reached >= self._dialect.best - _ROUNDING_TOLERANCE

    def admissible_actions(self) -> None: ...


TaskRules: TypeAlias = EmbeddedEnvironment | FreeTextRules
"""Only what works before the first reset of an embedded environment is used of it."""


def rules_for(dialect: ClientDialect, mode: Mode) -> TaskRules:
    if dialect.embedded is None:
        return FreeTextRules(dialect)
    rules: TaskRules = pkgutil.resolve_name(dialect.embedded)(mode=mode)
    return rules


class RewardReader:
    """Converts the reward and done fields of one episode's replies into step rewards, one reply at a time."""

    def __init__(self, dialect: ClientDialect) -> None:
        self._dialect = dialect
        self._total = 0.0
        self.truncated = False
        """Whether the server ended the episode at the server's own step limit."""

    @property
    def reached_best(self) -> bool:
        return self._dialect.reward == "total" and self._total >= self._dialect.best - _ROUNDING_TOLERANCE

    def read(self, payload: Payload, observation: str) -> tuple[float, bool]:
        """Return the reward of this step and whether the episode is over; raises ``EnvironmentFault`` without them."""
        value, done = payload.number(self._dialect.reward_at), payload.flag(self._dialect.done_at)
        self.truncated = payload.has(_TRUNCATED_PATH) and payload.flag(_TRUNCATED_PATH)
        reward, completed = value, False
        if self._dialect.reward == "total":
            reward, self._total = value - self._total, value
        elif self._dialect.reward == "once":
            reward = 0.0 if self._total else value
            completed = value != 0 and _COMPLETED_TEXT in observation
            self._total = self._total or value
        return reward, done or completed or self.truncated


class HttpEnvironment:
    """Environment played on a server; the requests of one ``HttpEnvironment`` never overlap.

    A failed request ends the episode: ``step`` raises until the next ``reset``, because the server may or may not have
    executed the step. ``mode`` names the rules of the server; AgentGym's servers have ``compat`` rules. Raises
    ``ConfigError`` if the environment has no dialect or the address is invalid.
    """

    def __init__(
        self, *, env: str, address: ServerAddress, mode: Mode = "strict", timings: HttpTimings = DEFAULT_TIMINGS
    ) -> None:
        self._dialect = select_dialect(env, address)
        self._rules = rules_for(self._dialect, mode)
        self._instance = RemoteInstance(self._dialect, address, timings)
        self._reward_reader = RewardReader(self._dialect)
        self._lock = asyncio.Lock()
        self._running = False
        self._observation = self._opening = ""
        self._lists_actions = address.lists_actions
        is_ours = mode == "strict" and self._dialect.embedded  # with as many tasks as the embedded class
        self.n_tasks = address.n_tasks or (not is_ours and self._dialect.n_tasks) or self._rules.n_tasks
        self.task_index = 0
        self.rejection: Rejection | None = None
        """How the latest step rejected its action; None if it executed the action."""
        self._episode_id = ""

    async def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: Any) -> Chat:  # noqa: ANN401
        async with self._lock:
            self._running = False
            self.task_index = task_index % self.n_tasks
            if self._dialect.fresh:
                await self._instance.close()
            if self._instance.id is None:
                await self._instance.open(self.task_index)
            self._episode_id = f"{self._dialect.name}-{self.task_index}@{self._instance.id}"
            self._reward_reader = RewardReader(self._dialect)
            payload = await self._instance.reset(self.task_index)
            *parts, last = self._dialect.opening
            opening = [payload.text(part) for part in parts if payload.has(part)]
            self._observation = self._with_actions("\n".join([*opening, payload.text(last)]), payload)
            self._opening = self._observation
            self._running = True
            return [{"role": "user", "content": self._observation}]

    async def step(self, action: Action) -> StepResult:
        """Take one action; ``EnvironmentFault`` is also raised if the instance belongs to another episode now.

        A tool call that does not match the tool's schema, or a text that is too long, is not sent and does not change
        the task; the observation describes a valid action.
        """
        async with self._lock:
            if not self._running:
                raise EnvironmentFault(f"{self._dialect.name}: step called outside an episode; call reset first")
            command = self._command(action)
            if isinstance(command, InvalidAction):
                self.rejection = "invalid"
                return as_reply_messages(action, f"Invalid action. Expected {command.expected}."), 0.0, False
            self._running = False
            await self._check_instance()
            payload = await self._instance.step(command)
            if self._dialect.places is not None:  # the id may have been reissued in between
                await self._check_instance()
            text = payload.text(self._dialect.observation_at)
            reward, done = self._reward_reader.read(payload, text)
            self.rejection = "refused" if self._has_refused(command, text) else None
            self._observation = self._with_actions(text, payload)
            self._running = not done
            return as_reply_messages(action, self._observation), reward, done

    def get_tool_schemas(self) -> list[ToolSchema]:
        return self._rules.grammar.schemas

    def get_episode_id(self) -> str:
        """Such as ``Maze-3@17``, with the instance id behind the ``@``."""
        return self._episode_id

    def admissible_actions(self) -> MaybeAwaitable[list[str] | None]:
        """May send a request to the server, with the errors of ``reset``; None if the actions are unknown."""
        match self._dialect.actions:
            case "shown":
                return _parse_listed_actions(self._observation)
            case "rules":
                return self._rules.admissible_actions()
            case None if not (self._lists_actions or (self._dialect.page_at and self._running)):
                return None
        return self._fetch_actions()

    async def render_cells(self) -> Cells | None:
        """Only our own servers draw; raises ``TimeoutError`` if that takes longer than ``PICTURE_TIMEOUT_S``."""
        if not self._lists_actions:
            return None
        async with self._lock, asyncio.timeout(PICTURE_TIMEOUT_S):
            return (await self._instance.get("/world")).cells(())

    def parse(self, text: str) -> Action | InvalidAction:
        return self._rules.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        return self._rules.success(trajectory) or self._reward_reader.reached_best

    @property
    def truncated(self) -> bool:
        return self._reward_reader.truncated

    @property
    def unanswered_request(self) -> ServerGone | None:
        """The error for a step or reset that was cancelled while the server's reply was overdue; else None."""
        return self._instance.unanswered

    async def cleanup(self) -> None:
        """Takes bounded time; ``reset`` can follow."""
        self._running = False
        await self._instance.close()

    async def _fetch_actions(self) -> list[str] | None:
        async with self._lock:
            if not self._running:
                return None
            if self._lists_actions:
                payload = await self._instance.get("/admissible")
                return payload.texts(()) if payload.has(()) else None
            if self._dialect.page_at is not None:
                page = await self._instance.get(self._dialect.page_at)
                return self._dialect.page_actions(self._opening, page)
        return self._dialect.actions(self._opening) if callable(self._dialect.actions) else None

    async def _check_instance(self) -> None:
        """Raise ``EnvironmentFault`` if the instance shows something that this episode has not seen, and leave it.

        AgentGym's servers number their instances from 0 after each start, and SQLGym's shares eight of them. The ids of
        our own servers are unique, so that they need no further request.
        """
        if self._dialect.shows is None or self._lists_actions:
            return
        try:
            payload = await self._instance.get("/observation")
            shown = payload.text(self._dialect.shown_at)
        except ServerGone:
            raise
        except EnvironmentFault:
            return  # an error shows no other episode; the step has the same error, or can be played
        expected = self._dialect.shows(self._opening, self._observation)
        if shown != expected:
            self._instance.abandon()
            number, ours, theirs = first_difference(expected, shown)
            raise payload.fault(
                f"shows another episode: line {number} is {theirs}; expected {ours}",
                "The server was restarted, or another program uses it and got the same instance: let one program at a "
                "time use it, then run the task again",
            )

    def _command(self, action: Action) -> str | InvalidAction:
        if action.tool_calls:
            command = self._rules.grammar.render(action.tool_calls[0])
        else:
            text = action.text or ""
            parsed = self._rules.parse(text) if self._dialect.sends_meaning else None
            command = self._rules.grammar.render(parsed.tool_calls[0]) if isinstance(parsed, Action) else text
        if isinstance(command, str) and self._instance.request_size(command) > MAX_REQUEST_BYTES:
            return InvalidAction("", "a shorter text")
        return command

    def _has_refused(self, command: str, observation: str) -> bool:
        if self._dialect.name == "WebShop":
            return is_lost_click(command, self._observation, observation)
        return is_refusal(self._dialect.name, observation)

    def _with_actions(self, observation: str, payload: Payload) -> str:
        if self._dialect.actions_at is None:
            return observation
        return f"{observation}\n{_ACTIONS_PREFIX}{json.dumps(payload.texts(self._dialect.actions_at))}"


def select_dialect(env: str, address: ServerAddress) -> ClientDialect:
    if address.dialect == "createEnv":
        return create_env_dialect(env)
    if (dialect := dialect_for(env)) is None:
        raise ConfigError(f"{env!r} cannot be played over HTTP: no dialect is known for it. Play it embedded")
    return dialect


def _parse_listed_actions(observation: str) -> list[str] | None:
    line = observation.rpartition("\n")[2]
    if not line.startswith(_ACTIONS_PREFIX):
        return None
    try:
        return msgspec.json.decode(line.removeprefix(_ACTIONS_PREFIX), type=list[str])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None

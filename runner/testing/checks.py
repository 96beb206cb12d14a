"""Checks of the environment contract, ``EnvironmentCheck``, and what those of the agent contract share with them."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from runner.episode.validation import check_chat, check_details, check_schemas, check_step, note_rejection
from runner.errors import EnvironmentFault, catch_foreign
from runner.types import (
    Action,
    Chat,
    Environment,
    InvalidAction,
    StepResult,
    SupportsActionList,
    SupportsCleanup,
    SupportsEvaluation,
    SupportsOracle,
    SupportsParse,
    SupportsSuccess,
    SupportsTasks,
    SupportsTruncation,
    TimeStep,
    ToolCall,
    Trajectory,
)
from runner.types.protocols import maybe_await

HOSTILE_TEXTS: tuple[str, ...] = (
    "",
    " \t\r\n",
    "\x00",
    "\ud800",
    "\u202e\u200bmove",
    "\x1b[2J",
    "{0.__class__} %s ${x}",
    "__import__('os').abort()",
    '{"name": "x", "arguments": {}}',
    "9" * 5_000,
    "(" * 10_000,
    "a " * 500_000,
)
"""Action texts, up to 1 MB, that a model could produce and that must not break an environment."""
HOSTILE_ARGUMENTS = ("", "{", "null", "[]", "{}", '{"\ud800": 1}', '{"x": NaN}', "[" * 10_000)
_N_SAMPLED = 200
_N_COMPARED = 8


async def reset(environment: Environment, **reset_kwargs: Any) -> str:  # noqa: ANN401 - an environment's own arguments
    return observation_text(
        check_chat(await maybe_await(environment.reset(**reset_kwargs)), "the observation of a reset")
    )


async def timestep(environment: Environment, index: int, action: Action) -> TimeStep:
    """Raises ``EnvironmentFault`` if the result of the step breaks the contract."""
    result: StepResult = await maybe_await(environment.step(action))
    observation, reward, done = check_step(result)
    if not isinstance(result[2], bool):
        raise EnvironmentFault(f"step should return a bool as done; got {result[2]!r}")
    return TimeStep(
        index=index,
        chats=[],
        action=action,
        observation=observation,
        reward=reward,
        done=done,
        available_tool_schemas=[],
    )


def observation_text(chat: Chat) -> str:
    """As JSON, without the roles: they differ between answers to texts and to tool calls. Each message needs a text."""
    contents: list[object] = [message.get("content") for message in chat]
    if not all(isinstance(content, str) for content in contents):
        raise EnvironmentFault(f"an observation should have text in each message; got {shorten(repr(contents))}")
    return json.dumps(contents)


def outcome(step: TimeStep) -> tuple[str, float, bool]:
    """Return observation, reward and done of a step, which must be equal when an episode is repeated."""
    return observation_text(step.observation), step.reward, step.done


async def tool_names(environment: Environment) -> set[str]:
    return {schema["function"]["name"] for schema in await maybe_await(environment.get_tool_schemas())}


async def listed_actions(environment: Environment) -> object:
    """Return None if the environment lists no actions."""
    return await maybe_await(environment.admissible_actions()) if isinstance(environment, SupportsActionList) else None


async def parse(environment: Environment, text: str) -> Action | InvalidAction:
    """Without a parser, the text is returned as it is."""
    return await maybe_await(environment.parse(text)) if isinstance(environment, SupportsParse) else Action(text)


def is_tool(schema: object) -> bool:
    match schema:
        case {"type": "function", "function": {"name": str(), "description": str(), "parameters": {"type": "object"}}}:
            return True
    return False


def shorten(text: str) -> str:
    """Return a text for an error message: at most 120 characters, with invalid characters escaped."""
    short = text if len(text) <= 120 else f"{text[:120]}…"
    return short.encode("utf-8", "backslashreplace").decode()


class ContractCheck:
    """Collects the distinct problems that checks find; a failed check does not stop the other checks."""

    def __init__(self) -> None:
        self._problems: dict[str, None] = {}  # a set that keeps its order

    async def _run(self, label: str, check: Awaitable[None]) -> None:
        with self._report_errors(label):
            await check

    @contextmanager
    def _report_errors(self, label: str) -> Iterator[None]:
        def report(exc: BaseException) -> None:
            self._expect(False, f"{label} failed: {type(exc).__name__}: {shorten(str(exc))}")

        with catch_foreign(report):
            yield

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self._problems[problem] = None


class EnvironmentCheck(ContractCheck):
    """Runs all checks, each on new instances of the environment."""

    def __init__(self, factory: Callable[[], Environment], max_steps: int) -> None:
        super().__init__()
        self._factory = factory
        self._max_steps = max_steps
        self._random = random.Random(0)
        self._environments: list[Environment] = []

    async def run(self, tasks: Sequence[int]) -> list[str]:
        per_task = (self._resets, self._replay, self._actions, self._oracle)
        for task in tasks:
            for check in per_task:
                await self._run(f"task {task}, {check.__name__.strip('_')}", check(task))
        for check_once in (self._description, self._hostile_texts, self._hostile_calls, self._verdicts, self._cleanup):
            await self._run(check_once.__name__.strip("_").replace("_", " "), check_once())
        return list(self._problems)

    def _create(self) -> Environment:
        environment = self._factory()
        self._environments.append(environment)
        return environment

    async def _start(self, task: int) -> Environment:
        environment = self._create()
        await reset(environment, task_index=task)
        return environment

    async def _choose_action(self, environment: Environment) -> str:
        if isinstance(actions := await listed_actions(environment), list) and actions:
            return str(self._random.choice(actions))
        return environment.oracle(0).next_action() if isinstance(environment, SupportsOracle) else ""

    async def _play(self, environment: Environment) -> list[TimeStep]:
        steps: list[TimeStep] = []
        while len(steps) < self._max_steps and not (steps and steps[-1].done):
            steps.append(await timestep(environment, len(steps), Action(text=await self._choose_action(environment))))
        return steps

    async def _description(self) -> None:
        environment = await self._start(0)
        n_tasks: object = getattr(environment, "n_tasks", 1)
        self._expect(type(n_tasks) is int and n_tasks > 0, f"n_tasks should be a positive int; it is {n_tasks!r}")
        for schema in check_schemas(await maybe_await(environment.get_tool_schemas())):
            self._expect(is_tool(schema), f"a tool schema is not an OpenAI function: {shorten(repr(schema))}")
        episode_id: object = await maybe_await(environment.get_episode_id())
        self._expect(isinstance(episode_id, str), f"get_episode_id should return a str; got {episode_id!r}")

    async def _resets(self, task: int) -> None:
        used = self._create()
        expected = await reset(used, task_index=task, seed=0)
        await self._play(used)
        extras = {"task": {"task_id": "x"}, "task_unique_id": "x"}
        variants: list[tuple[str, Environment, dict[str, Any]]] = [
            ("on a used instance", used, {"task_index": task, "seed": 0}),
            ("on another instance", self._create(), {"task_index": task, "seed": 0}),
            ("with another seed", self._create(), {"task_index": task, "seed": 1}),
            ("with task and task_unique_id", self._create(), {"task_index": task, "seed": 0, **extras}),
        ]
        if isinstance(used, SupportsTasks):
            kwargs = {"task_index": task + used.n_tasks, "seed": 0}
            variants.append(("with the index plus n_tasks", self._create(), kwargs))
        for label, environment, kwargs in variants:
            with self._report_errors(f"task {task}: reset {label}"):
                same = await reset(environment, **kwargs) == expected
                self._expect(same, f"task {task}: reset {label} returns a different observation")

    async def _replay(self, task: int) -> None:
        steps = await self._play(await self._start(task))
        again = await self._start(task)
        for step in steps:
            repeated = await timestep(again, step.index, step.action)
            same = outcome(repeated) == outcome(step)
            self._expect(same, f"task {task}: repeating the same actions gives different results")

    async def _actions(self, task: int) -> None:
        environment = await self._start(task)
        actions = await listed_actions(environment)
        if not isinstance(actions, list):
            self._expect(
                actions is None, f"admissible_actions should return a list or None; got {shorten(repr(actions))}"
            )
            actions = [await self._choose_action(environment)] if isinstance(environment, SupportsOracle) else []
        sampled = actions if len(actions) <= _N_SAMPLED else self._random.sample(actions, _N_SAMPLED)
        if not isinstance(environment, SupportsParse):
            return
        names = await tool_names(environment)
        for text in sampled:
            parsed = await parse(environment, text)
            called = {call.name for call in parsed.tool_calls} if isinstance(parsed, Action) else set()
            self._expect(
                bool(called) and called <= names,
                f"the listed action {shorten(repr(text))} does not parse as a tool call",
            )
        for text in sampled[:_N_COMPARED]:
            await self._text_and_call(task, text)

    async def _text_and_call(self, task: int, text: str) -> None:
        by_text, by_call = await self._start(task), await self._start(task)
        parsed = await parse(by_call, text)
        if isinstance(parsed, Action):
            by_text_step = await timestep(by_text, 0, Action(text=text))
            by_call_step = await timestep(by_call, 0, Action(tool_calls=parsed.tool_calls))
            same = outcome(by_text_step) == outcome(by_call_step)
            self._expect(same, f"the tool call of {shorten(repr(text))} does something else than the text")

    async def _hostile_texts(self) -> None:
        environment = await self._start(0)
        for text in HOSTILE_TEXTS:
            with self._report_errors(f"parse({shorten(repr(text))})"):
                parsed: object = await parse(environment, text)
                is_action = isinstance(parsed, Action | InvalidAction)
                self._expect(is_action, f"parse should return Action or InvalidAction; got {type(parsed).__name__}")
        await self._survives([Action(text=text) for text in HOSTILE_TEXTS])

    async def _hostile_calls(self) -> None:
        names = sorted({*await tool_names(await self._start(0)), "no such tool", "\ud800"})
        calls = [
            ToolCall(id="call_0", name=name, arguments=arguments) for name in names for arguments in HOSTILE_ARGUMENTS
        ]
        await self._survives([Action(tool_calls=[call]) for call in calls])

    async def _survives(self, actions: Sequence[Action]) -> None:
        environment, done = await self._start(0), False
        for action in actions:
            label = action.tool_calls[0] if action.tool_calls else action.text
            if done:
                environment = await self._start(0)
            done = True  # if the step raises, the instance must not be used further
            with self._report_errors(f"step({shorten(repr(label))})"):
                done = (await timestep(environment, 0, action)).done

    async def _oracle(self, task: int) -> None:
        environment = self._create()
        if not isinstance(environment, SupportsOracle):
            return
        observations = {await reset(environment, task_index=task)}
        planner = environment.oracle(0)
        for index in range(self._max_steps):
            text = planner.next_action()
            valid = isinstance(await parse(environment, text), Action)
            self._expect(valid, f"task {task}: the oracle's action {shorten(repr(text))} is not a valid action")
            step = await timestep(environment, index, Action(text=text))
            observations.add(observation_text(step.observation))
            if step.done:
                return
        self._expect(len(observations) > 1, f"task {task}: the oracle changed nothing in {self._max_steps} steps")

    async def _verdicts(self) -> None:
        environment = await self._start(0)
        steps = await self._play(environment)
        for played in (steps, []):
            if isinstance(environment, SupportsSuccess):
                verdict: object = await maybe_await(environment.success(Trajectory(timesteps=played)))
                self._expect(isinstance(verdict, bool), f"success should return a bool; got {verdict!r}")
        if isinstance(environment, SupportsTruncation):
            self._expect(isinstance(environment.truncated, bool), "truncated should be a bool")
        note_rejection(Action(), getattr(environment, "rejection", None))
        if isinstance(environment, SupportsEvaluation):
            check_details(await maybe_await(environment.get_evaluation_details()))

    async def _cleanup(self) -> None:
        self._create()  # cleanup must also work without a reset
        for environment in self._environments:
            if isinstance(environment, SupportsCleanup):
                with self._report_errors("cleanup, which may be called twice or before a reset,"):
                    await maybe_await(environment.cleanup())
                    await maybe_await(environment.cleanup())

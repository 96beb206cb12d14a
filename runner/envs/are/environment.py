"""Meta's Agents Research Environments (ARE): ``AREEnvironment`` plays one scenario, named ``are:<scenario>``.

The scenario runs in a worker process with ARE's own interpreter (``runner.envs.are.client``); this process never
imports ``are``. ``are:<scenario>`` has one task; ``are:offline`` has one task per scenario of ``OFFLINE_SCENARIOS``.

**Messages.** The content of each message of an observation starts with the tag of its kind, exactly once:

- ``[result] ``: result of the tool call; ``[error] ``: its error;
- ``[user] ``: message of the scenario's user;
- ``[notification] ``: notification of an app, whose text starts with the app's name and a colon;
- ``[environment] ``: the simulated time, waits, and the end of the scenario.

The first message answers the tool call (role ``tool`` if the action was a tool call, else ``user``); all others have
the role ``user``. Text after the tag is untrusted; a tag is only valid at the start of a message. The last message is
always ``[environment] `` with the simulated time.

**Evaluation details** (``get_evaluation_details``), JSON with these keys:

- ``success`` (bool, or None if the judge failed), ``rationale`` (text or None), ``exception`` (text or None);
- ``judge``: what rated, such as ``scenario`` for the scenario's own ``validate``, ``graph per event, hard checks only``
  or ``graph per event with model NAME``; ``judge_calls``, if a model answered: ``{model, calls, tokens, cost}``;
- ``rated`` (bool): False if the scenario has no oracle event, so that it may rate true although no agent acted;
- ``n_oracle_events``; ``events``: completed events ``{app, function, args, type, time}`` in their order, with ``error``
  where the call failed, and ``nested: true`` where a tool made it by itself; ``events_dropped``: number of events that
  are left out before the first one;
- ``missed``: oracle events without a matching agent event, ``{app, function, args, reason}``; ``missed_dropped``: the
  number of further ones;
- ``duration`` (seconds), ``simulated_s`` (seconds of simulated time), ``scenario``, ``memory_mib`` (peak of the
  episode's process, with the loaded package), ``memory_limit_mib`` (what it may use in addition to the package).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from runner.config import ARESettings
from runner.envs.are.catalog import OFFLINE_SCENARIOS
from runner.envs.are.client import EpisodeProcess, start_episode
from runner.envs.are.inbox_picture import InboxPainter
from runner.envs.are.judge import EpisodeJudge, JudgeModels
from runner.envs.are.protocol import Call, Evaluate, Evaluated, Reset, Stepped, ToolRequest
from runner.envs.base import as_reply_messages
from runner.envs.data_labels import DataLabel
from runner.errors import AgentFault, EnvironmentFault
from runner.types import (
    Action,
    Cells,
    Chat,
    InvalidAction,
    Mode,
    Rejection,
    StepResult,
    ToolCall,
    ToolSchema,
    Trajectory,
)

FAMILY = "are"
OFFLINE = "offline"
"""Id that stands for all of ``OFFLINE_SCENARIOS``, one task each."""
_SAMPLES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}


class AREEnvironment:
    """A scenario of ARE, played in a fresh fork of ARE's warm worker process.

    An action is one tool call, or its text: a JSON object with ``name`` and ``arguments``. A call takes one simulated
    second; the tool ``wait`` lets more pass. An episode is done when the scenario ends, or when the agent's message to
    the user ends the last turn. The last step has the reward 1 if the scenario's validation succeeds.

    Args:
        id: id of the scenario, or ``offline``.
        settings: the profile's section ``are``, as ``ARESettings`` or its keys; None for the default settings.
        mode: has no effect, since AgentGym has no server for these environments.
        inference_mngr: source of the answers of ``are.judge_model``; None if judges have no model.
    """

    data_label = DataLabel(FAMILY)
    packages: tuple[str, ...] = ()
    open_files = 4
    """Descriptors of an episode's socket, and of another while its process starts; see ``runner.batch.slots``."""

    def __init__(
        self,
        *,
        id: str,
        settings: ARESettings | Mapping[str, Any] | None = None,
        mode: Mode = "strict",
        inference_mngr: JudgeModels | None = None,
    ) -> None:
        self.mode = mode
        self._id = id
        self._scenarios = OFFLINE_SCENARIOS if id == OFFLINE else (id,)
        self._settings = settings if isinstance(settings, ARESettings) else msgspec.convert(settings or {}, ARESettings)
        self._scenario = self._scenarios[0]
        self._models = inference_mngr
        self._judge = EpisodeJudge(None, self._settings)
        self._process: EpisodeProcess | None = None
        self._tools: list[ToolSchema] = []
        self._next: ToolRequest | None = None
        self._painter: InboxPainter | None = None
        self.rejection: Rejection | None = None
        """How the latest step rejected its action; None if it executed the action."""
        self._running = False
        self._details: dict[str, Any] | None = None

    @staticmethod
    def check(id: str) -> None:
        """Accept every id: only ARE, which is not loaded yet, knows its scenarios."""

    @property
    def name(self) -> str:
        return f"{FAMILY}:{self._id}"

    @property
    def n_tasks(self) -> int:
        return len(self._scenarios)

    async def reset(
        self,
        *,
        task_index: int = 0,
        seed: int | None = None,
        task: object = None,
        **extra: Any,  # noqa: ANN401
    ) -> Chat:
        """Start a scenario; ``seed`` has no effect, since a scenario starts in the same state each time.

        ``task`` is an object or mapping with ``task_id``, the id of the scenario to start instead of that of
        ``task_index``.
        """
        self.cleanup()
        self._scenario = _scenario_id(task) or self._scenarios[task_index % self.n_tasks]
        self._details = None
        self._process = await _start_episode(self._settings)
        self._judge = EpisodeJudge(self._models, self._settings)
        self._process.answer_judge = self._judge.answer
        stepped = await self._process.request(Reset(self._scenario), Stepped)
        self._tools = stepped.tools or []
        self._running = not stepped.done
        self._next = stepped.oracle
        self._painter = InboxPainter(schema["function"]["name"] for schema in self._tools)
        self._painter.add_messages(stepped.parts)
        return [{"role": "user", "content": text} for text in _tagged(stepped)]

    async def step(self, action: Action) -> StepResult:
        """An invalid action changes nothing.

        Raises:
            EnvironmentFault: if no episode is running, or the worker fails.
        """
        if self._process is None or not self._running:
            raise EnvironmentFault(f"{self.name}: step called outside an episode; call reset first")
        parsed: Action | InvalidAction = action if action.tool_calls else self.parse(action.text or "")
        request = parsed if isinstance(parsed, InvalidAction) else self._request(parsed.tool_calls[0])
        if isinstance(request, InvalidAction):
            self.rejection = "invalid"
            return as_reply_messages(action, f"[error] Invalid action. Expected {request.expected}."), 0.0, False
        stepped = await self._process.request(Call(request.name, request.arguments), Stepped)
        self._running, self._next = not stepped.done, stepped.oracle
        if self._painter is not None:
            self._painter.add_call(request.name)
            self._painter.add_messages(stepped.parts)
        answer, *arrived = _tagged(stepped)
        self.rejection = "refused" if answer.startswith("[error] ") else None
        observation = as_reply_messages(action, answer)
        observation += [{"role": "user", "content": text} for text in arrived]
        return observation, stepped.reward, stepped.done

    def get_tool_schemas(self) -> list[ToolSchema]:
        """They are known after a reset."""
        return self._tools

    def render_cells(self) -> Cells | None:
        return None if self._painter is None else self._painter.draw()

    def get_episode_id(self) -> str:
        return f"{FAMILY}:{self._scenario}"

    def admissible_actions(self) -> list[str]:
        """One action per tool, with sample values for the required arguments."""
        return [action_text(*_sample_call(schema["function"])) for schema in self._tools]

    def parse(self, text: str) -> Action | InvalidAction:
        """Parse a JSON object with ``name`` and ``arguments`` into a tool call."""
        try:
            written = msgspec.json.decode(text.strip(), type=ToolRequest)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return InvalidAction(text, 'a JSON object {"name": "<tool>", "arguments": {…}}')
        call = ToolCall(id="call_0", name=written.name, arguments=msgspec.json.encode(written.arguments).decode())
        request = self._request(call)
        return request if isinstance(request, InvalidAction) else Action(text=text, tool_calls=[call])

    def _request(self, call: ToolCall) -> ToolRequest | InvalidAction:
        tools: dict[str, Any] = {schema["function"]["name"]: schema["function"] for schema in self._tools}
        if call.name not in tools:
            return InvalidAction(call.name, f"one of the tools {', '.join(tools)}")
        parameters = tools[call.name]["parameters"]
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return InvalidAction(call.arguments, f"the arguments of {call.name} as a JSON object")
        if not set(parameters["required"]) <= arguments.keys() <= parameters["properties"].keys():
            required, known = ", ".join(parameters["required"]) or "none", ", ".join(parameters["properties"]) or "none"
            return InvalidAction(call.arguments, f"{call.name} with the arguments {known} (required: {required})")
        return ToolRequest(call.name, arguments)

    def oracle(self, seed: int | None) -> AREOracle:
        return AREOracle(lambda: self._next)

    async def success(self, trajectory: Trajectory) -> bool:
        """Return whether the scenario's validation succeeds; False if its judge failed, and before a reset."""
        details = await self._evaluate()
        return details is not None and details.get("success") is True

    async def get_evaluation_details(self) -> dict[str, Any] | None:
        return await self._evaluate()

    async def _evaluate(self) -> dict[str, Any] | None:
        if self._details is None and self._process is not None:
            evaluated = await self._process.request(Evaluate(), Evaluated)
            self._details = self._judge.describe(evaluated.details)
        return self._details

    def cleanup(self) -> None:
        self._running = False
        if self._process is not None:
            self._process.close()
            self._process = None


class AREOracle:
    """Oracle that returns the actions of the scenario's own oracle events, and waits until each is due.

    The worker computes the next action after each step, because ids such as that of a task are drawn when the scenario
    is initialized.

    Args:
        next_request: returns the next action; None if the scenario has ended or an oracle event calls no tool.
    """

    def __init__(self, next_request: Callable[[], ToolRequest | None]) -> None:
        self._next_request = next_request

    def next_action(self) -> str:
        request = self._next_request()
        if request is None:
            raise AgentFault("The scenario's next oracle event calls a function that is no tool of its agent")
        return action_text(request.name, request.arguments)


def action_text(name: str, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


async def _start_episode(settings: ARESettings) -> EpisodeProcess:
    """Fork an episode's process on a thread, since the start of the worker blocks for seconds."""
    started: list[EpisodeProcess] = []
    cancelled = threading.Event()

    def start() -> EpisodeProcess:
        started.append(process := start_episode(settings))
        if cancelled.is_set():
            process.close()
        return process

    try:
        return await asyncio.to_thread(start)
    except asyncio.CancelledError:
        cancelled.set()
        for process in started:
            process.close()
        raise


def _scenario_id(task: object) -> str | None:
    task_id = task.get("task_id") if isinstance(task, Mapping) else getattr(task, "task_id", None)
    return None if task_id is None else str(task_id).removeprefix(f"{FAMILY}:")


def _tagged(stepped: Stepped) -> list[str]:
    return [f"[{kind}] {text}" for kind, text in stepped.parts] or ["[environment] "]


def _sample_call(function: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    properties = function["parameters"]["properties"]
    required = function["parameters"]["required"]
    return function["name"], {name: _sample(properties[name]) for name in required}


def _sample(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a value of the schema
    if options := schema.get("enum"):
        return options[0]
    if options := schema.get("anyOf"):
        return _sample(options[0])
    return _SAMPLES.get(str(schema.get("type")), "text")

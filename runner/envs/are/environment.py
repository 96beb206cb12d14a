"""Meta's Agents Research Environments (ARE): ``AREEnvironment`` plays one scenario, named ``are:<scenario>``.

The scenario runs in a process with ARE's own interpreter (``runner.envs.are.client``); this process never
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
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, Protocol

import msgspec

from runner.config import ARESettings
from runner.envs.are.catalog import FAMILY, OFFLINE_ID, OFFLINE_SCENARIOS
from runner.envs.are.client import (
    Answer,
    Ask,
    Call,
    EpisodeProcess,
    Evaluate,
    Evaluated,
    Reset,
    Stepped,
    ToolRequest,
    start_episode,
)
from runner.envs.base import DataLabel, as_reply_messages
from runner.errors import AgentFault, EnvironmentFault, InferenceFault
from runner.types import (
    Action,
    CellRow,
    CellRun,
    Cells,
    Chat,
    InvalidAction,
    Mode,
    ModelSession,
    Rejection,
    StepResult,
    Tokens,
    ToolCall,
    ToolSchema,
    Trajectory,
)
from runner.types.cells import CellColor

_GRAPH = "graph per event"
"""Judge of ARE that compares each oracle event by fixed rules, and some texts by a model where they differ."""
_WIDTH = 74
_MAX_APPS = 24
_MAX_MESSAGES = 8
_MAX_CHARS = 300
"""Characters of a message that are kept."""
_MAX_LINES = 3
"""Lines of a message that are shown."""
_MARKS: dict[str, tuple[str, CellColor]] = {"user": ("@", "yellow"), "notification": ("!", "cyan")}
"""Mark and color of a message by its kind; messages of other kinds are no mail."""
_SAMPLES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}


class JudgeModels(Protocol):
    """Opens sessions, as ``InferenceManager`` does."""

    def model_session(self, model: str) -> ModelSession:
        """Return a session of one model, without another one as a fallback."""


class EpisodeJudge:
    """Answers the chats of one episode's judge, and counts the calls; ``models`` is None if the profile names none.

    ``are.judge_timeout_sec`` is the time for all answers of the episode together.
    """

    def __init__(self, models: JudgeModels | None, settings: ARESettings) -> None:
        model = settings.judge_model
        self._session = None if models is None or model is None else models.model_session(model)
        self._time_left_s = settings.judge_timeout_sec
        self._model = ""
        self._n_calls = 0
        self._tokens = Tokens()
        self._cost: float | None = 0.0

    async def answer(self, ask: Ask) -> Answer:
        """Raise nothing if the model fails: the answer then has no text, but the problem."""
        if self._session is None:
            return Answer(
                problem="The judge of the scenario needs a model; name one of the profile's models by are: "
                "{judge_model: …}"
            )
        chat: Chat = [{"role": each["role"], "content": each["content"]} for each in ask.messages]
        started = time.monotonic()
        try:
            answer = await self._session.infer(chat, tools=[], time_left_s=self._time_left_s)
        except InferenceFault as exc:
            return Answer(problem=f"The model of the judge failed: {exc}")
        finally:
            self._time_left_s -= time.monotonic() - started
        self._n_calls += 1
        self._model = answer.usage.model
        self._tokens += answer.usage.tokens or Tokens()
        cost = answer.usage.cost
        self._cost = None if self._cost is None or cost is None else self._cost + cost
        if answer.finish_reason == "length":
            return Answer(problem="The answer of the judge's model was cut; raise agent.max_tokens of the profile")
        return Answer(text=answer.message["content"] or "")

    def with_calls(self, details: dict[str, Any]) -> dict[str, Any]:
        """Return evaluation details that say whether a model rated, with its calls; cost None if one is unknown."""
        judge = str(details.get("judge", ""))
        if not self._n_calls:
            return {**details, "judge": f"{judge}, hard checks only"} if judge == _GRAPH else details
        calls = {"model": self._model, "calls": self._n_calls, "cost": self._cost}
        tokens = {"prompt": self._tokens.prompt, "completion": self._tokens.completion}
        judge = "the scenario's own validation" if judge == "scenario" else judge
        return {**details, "judge": f"{judge} with model {self._model}", "judge_calls": {**calls, "tokens": tokens}}


class AREEnvironment:
    """A scenario of ARE, played in a fresh fork of ARE's warm process.

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
    """Descriptors of an episode's socket, and of another while its process starts; see ``runner.batch.spec``."""

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
        self._scenarios = OFFLINE_SCENARIOS if id == OFFLINE_ID else (id,)
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
        """Start a scenario: that of ``task``'s ``task_id``, if it has one, else task ``task_index`` modulo ``n_tasks``.

        ``task`` is an object or a mapping; ``seed`` has no effect. Raises ``EnvironmentFault`` if ARE cannot be
        started, or the scenario is unknown or fails.
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
        return self._tools

    def render_cells(self) -> Cells | None:
        return None if self._painter is None else self._painter.draw()

    def get_episode_id(self) -> str:
        return f"{FAMILY}:{self._scenario}"

    def admissible_actions(self) -> list[str]:
        actions = []
        for function in (schema["function"] for schema in self._tools):
            parameters = function["parameters"]
            arguments = {name: _sample(parameters["properties"][name]) for name in parameters["required"]}
            actions.append(action_text(function["name"], arguments))
        return actions

    def parse(self, text: str) -> Action | InvalidAction:
        try:
            written = msgspec.json.decode(text.strip(), type=ToolRequest)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):  # of lone surrogates and of deep nesting
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
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):  # as in `parse`
            return InvalidAction(call.arguments, f"the arguments of {call.name} as a JSON object")
        if not set(parameters["required"]) <= arguments.keys() <= parameters["properties"].keys():
            required, known = ", ".join(parameters["required"]) or "none", ", ".join(parameters["properties"]) or "none"
            return InvalidAction(call.arguments, f"{call.name} with the arguments {known} (required: {required})")
        return ToolRequest(call.name, arguments)

    def oracle(self, seed: int | None) -> AREOracle:
        return AREOracle(lambda: self._next)

    async def success(self, trajectory: Trajectory) -> bool:
        details = await self.get_evaluation_details()
        return details is not None and details.get("success") is True

    async def get_evaluation_details(self) -> dict[str, Any] | None:
        if self._details is None and self._process is not None:
            evaluated = await self._process.request(Evaluate(), Evaluated)
            self._details = self._judge.with_calls(evaluated.details)
        return self._details

    def cleanup(self) -> None:
        self._running = False
        if self._process is not None:
            self._process.close()
            self._process = None


class AREOracle:
    """Oracle that returns the actions of the scenario's own oracle events, and waits until each is due.

    ARE's process computes the next action after each step, because ids such as that of a task are drawn when the
    scenario is initialized; it is None if the scenario has ended or an oracle event calls no tool.
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
    """Fork an episode's process on a thread, since the start of ARE's process blocks for seconds."""
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
    """At least one message, since the first one answers the action."""
    return [f"[{kind}] {text}" for kind, text in stepped.parts] or ["[environment] "]


def _sample(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a value of the schema
    if options := schema.get("enum"):
        return options[0]
    if options := schema.get("anyOf"):
        return _sample(options[0])
    return _SAMPLES.get(str(schema.get("type")), "text")


class InboxPainter:
    """Draws one scenario: its apps with the calls made in each, and the inbox, the newest message first.

    It needs only the messages and tools that the agent has seen, and nothing of the scenario's process. The part of a
    tool's name before ``__`` is the app, as in ``Calendar__add_event``.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self._n_tools = Counter(map(_app_of, tools))
        self._n_calls = Counter[str]()
        self._newest_call = ""
        self._messages: deque[tuple[str, str]] = deque(maxlen=_MAX_MESSAGES)
        self._n_messages = 0
        self._time = ""

    def add_call(self, tool: str) -> None:
        self._n_calls[_app_of(tool)] += 1
        self._newest_call = tool

    def add_messages(self, parts: Sequence[tuple[str, str]]) -> None:
        """The last message has the simulated time."""
        for kind, text in parts:
            if kind in _MARKS:
                self._messages.append((kind, text[:_MAX_CHARS]))
                self._n_messages += 1
        if parts and parts[-1][0] == "environment":
            self._time = parts[-1][1][:_WIDTH]

    def draw(self) -> Cells:
        apps = sorted(self._n_tools)[:_MAX_APPS]
        width = max(map(len, apps), default=0)
        heading = (CellRun("Time: ", "dim"), CellRun(self._time or "not known"))
        rows = [row for kind, text in reversed(self._messages) for row in _message_rows(kind, text)]
        return Cells(
            [
                heading,
                (),
                (CellRun(f"Apps · {len(self._n_tools)}", "dim"),),
                *(self._app_row(app, width) for app in apps),
                (),
                (CellRun(f"Inbox · {self._n_messages}   @ from the user  ! from an app", "dim"),),
                *(rows or [(CellRun("no message", "dim"),)]),
            ]
        )

    def _app_row(self, app: str, width: int) -> CellRow:
        n_tools, n_calls = self._n_tools[app], self._n_calls[app]
        # before the first call, `_app_of("")` is the app of `wait`
        is_newest = app == _app_of(self._newest_call) and bool(self._newest_call)
        calls = f"{n_calls} call{'' if n_calls == 1 else 's'}" if n_calls else ""
        last = f", last: {self._newest_call.rpartition('__')[2]}" if is_newest else ""
        mark = CellRun("► " if is_newest else "  ", "yellow")
        color: CellColor = "yellow" if is_newest else "plain" if n_calls else "dim"
        return (
            mark,
            CellRun(f"{app:<{width}}  {n_tools:>3} {'tool ' if n_tools == 1 else 'tools'}  ", color),
            CellRun(calls + last),
        )


def _app_of(tool: str) -> str:
    return tool.rpartition("__")[0][:40] or "environment"  # `wait` belongs to no app


def _message_rows(kind: str, text: str) -> list[CellRow]:
    mark, color = _MARKS[kind]
    lines = wrap(text, _WIDTH - 2, max_lines=_MAX_LINES, placeholder=" …") or [""]
    return [(CellRun(f"{mark} " if not number else "  ", color), CellRun(line)) for number, line in enumerate(lines)]

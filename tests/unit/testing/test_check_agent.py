"""The contract test for agents: which agents pass it, and what it reports about the others."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runner.agents.baselines import RandomAgent
from runner.agents.model.react import ReactAgent, ToolsAgent
from runner.envs.wordle import Wordle
from runner.errors import InferenceFault
from runner.testing import CheckFailed, check_agent
from runner.types import (
    Action,
    ActResult,
    Agent,
    Chat,
    EpisodeInfo,
    Inference,
    InvalidAction,
    ModelAgent,
    ModelSettings,
    ModelSource,
    ToolSchema,
    Usage,
)
from tests.sample_agent.agentgym_think_first import ThinkFirst
from tests.support.fakes import UpAgent

DOCS = Path(__file__).resolve().parents[3] / "docs/build/agents.md"


@pytest.mark.parametrize("agent", [ReactAgent, ToolsAgent, RandomAgent, ThinkFirst])
def test_agents_of_ours_and_the_sample_agent_pass(agent: Callable[..., Agent]) -> None:
    check_agent(agent)
    if agent is ThinkFirst:
        check_agent(agent, environment=Wordle, tasks=(3,))


def test_the_documentation_has_the_sample_agent() -> None:
    sample = sys.modules[ThinkFirst.__module__].__file__
    assert sample is not None
    assert f"```python\n{Path(sample).read_text()}```" in DOCS.read_text()


def test_the_types_fit_an_agent_with_a_model() -> None:
    agents: list[type[ModelAgent]] = [ThinkFirst, ReactAgent]
    assert all(agent.uses_model for agent in agents)


class AnswersInJson(ThinkFirst):
    """Sends no tools and reads its own form of an answer."""

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        self.last_usage = None
        answer = await self._ask(str(observation), [])
        try:
            return [], Action(text=str(json.loads(answer.text)["do"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return [], InvalidAction(answer.text, 'JSON such as {"do": "move left"}')


def test_a_form_of_its_own_is_answered_in_that_form() -> None:
    check_agent(AnswersInJson, reply=lambda chat, action: json.dumps({"do": action}))
    assert "pass reply if the agent expects" in problems_of(AnswersInJson)


class AsksTwoSessions(AnswersInJson):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        other = AnswersInJson(inference_mngr=self._models, settings=self._settings)
        other.enter(self._episode)
        results = await asyncio.gather(*(AnswersInJson.act(each, observation, []) for each in (self, other)))
        assert self.last_usage is not None and other.last_usage is not None
        self.last_usage += other.last_usage
        return results[0]


def test_requests_at_the_same_time_have_sessions_of_their_own() -> None:
    check_agent(AsksTwoSessions, reply=lambda chat, action: json.dumps({"do": action}))


def problems_of(agent: Callable[..., Agent]) -> str:
    with pytest.raises(CheckFailed) as caught:
        check_agent(agent)
    assert len(caught.value.problems) == 1
    assert str(caught.value) == f"The agent breaks its contract:\n- {caught.value.problems[0]}"
    return caught.value.problems[0]


class CountsLastAnswer(ThinkFirst):
    async def _ask(self, question: str, tools: list[ToolSchema]) -> Inference:
        answer = await super()._ask(question, tools)
        self.last_usage = answer.usage
        return answer


class KeepsUsage(ThinkFirst):
    """Acts by its first answer a second time."""

    _kept: ActResult | None = None

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        kept, self._kept = self._kept, None
        if kept is None:
            kept = self._kept = await super().act(observation, tool_schemas)
        return kept


class SharedTurns(ThinkFirst):
    shared: ClassVar[Chat] = []

    def enter(self, episode: EpisodeInfo) -> None:
        super().enter(episode)
        self._turns = self.shared


class SharedSession(ThinkFirst):
    headers: ClassVar[list[Any]] = []

    def enter(self, episode: EpisodeInfo) -> None:
        self.headers.append(episode.header)
        self._episode, self._session = episode, self._models.session(self.headers[0])


class AsyncEnter(ThinkFirst):
    async def enter(self, episode: EpisodeInfo) -> None:  # type: ignore[override]
        raise AssertionError("this is not awaited")


class SwallowsFault(ThinkFirst):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        try:
            return await super().act(observation, tool_schemas)
        except InferenceFault as exc:
            return [], InvalidAction(str(exc), "an answer")


class SwallowsCancellation(ThinkFirst):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        try:
            return await super().act(observation, tool_schemas)
        except asyncio.CancelledError:
            return [], Action(text="move up")


class TrustsAnswers(ThinkFirst):
    async def _ask(self, question: str, tools: list[ToolSchema]) -> Inference:
        answer = await super()._ask(question, tools)
        for call in answer.tool_calls:
            json.loads(call.arguments)["direction"]
        return answer


class RepeatsRequests(ThinkFirst):
    async def _ask(self, question: str, tools: list[ToolSchema]) -> Inference:
        while not ((answer := await super()._ask(question, tools)).tool_calls or not tools):
            pass
        return answer


class AsksTwiceAtOnce(ThinkFirst):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        self.last_usage = None
        await asyncio.gather(self._ask("one", []), self._ask("two", []))
        return [], Action(text="move up")


class SendsObservations(ThinkFirst):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        result = await super().act(observation, tool_schemas)
        self._turns = [*observation, {"role": "user", "content": "that was seen"}]
        return result


class NeverAsks(ThinkFirst):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        return [], Action(text="move up")


class ReturnsAction(ThinkFirst):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        return (await super().act(observation, tool_schemas))[1]  # type: ignore[return-value]


class StoresObjects(ThinkFirst):
    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> ActResult:
        _, action = await super().act(observation, tool_schemas)
        return [[{"role": "assistant", "content": self}]], action  # type: ignore[typeddict-item]


class FailsToClose(ThinkFirst):
    def close(self) -> None:
        raise OSError("already closed")


class LeavesTasks(ThinkFirst):
    def init_after_reset(self) -> None:
        self._task = asyncio.create_task(asyncio.sleep(100), name="heartbeat")


class OwnParameter(ThinkFirst):
    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings, n_votes: int) -> None:
        super().__init__(inference_mngr=inference_mngr, settings=settings)


class NoSettings(ThinkFirst):
    def __init__(self, *, inference_mngr: ModelSource) -> None:
        raise NotImplementedError


class WrongUsage(UpAgent):
    last_usage = Usage(endpoint="e", model="m")

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        self.last_usage = {"prompt": 3}  # type: ignore[assignment]
        return [], Action(text="move up")


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (CountsLastAnswer, "a step has 110 of the 220 tokens of its answers; set last_usage to the sum"),
        (KeepsUsage, "a step without a request has a usage; set last_usage to None in act"),
        (SharedTurns, "a second episode differs from the first; keep no state outside the agent's instance"),
        (SharedSession, "session should get the header of the episode that enter received"),
        (AsyncEnter, "enter should be a plain method; it is not awaited"),
        (SwallowsFault, "the episode should end with the InferenceFault of infer; got None; let it pass"),
        (SwallowsCancellation, "cancelled during a request goes on; let asyncio.CancelledError pass"),
        (TrustsAnswers, "ended an episode: JSONDecodeError"),
        (RepeatsRequests, "act sent more than 200 requests; return InvalidAction for a bad answer"),
        (AsksTwiceAtOnce, "a session takes one request at a time; open one session for each of several"),
        (SendsObservations, "has a tool message that answers no call of the assistant message before it"),
        (NeverAsks, "the agent has uses_model = True but sent no request"),
        (ReturnsAction, "AgentFault: act should return (list of chats, Action); got Action"),
        (StoresObjects, "a chat that act returns should be JSON: Object of type StoresObjects"),
        (FailsToClose, "close failed: OSError: already closed"),
        (LeavesTasks, "tasks still run after close: ['heartbeat', 'heartbeat', 'heartbeat', 'heartbeat']"),
        (OwnParameter, "does not fit: tests.unit.testing.test_check_agent.OwnParameter("),
        (OwnParameter, "missing a required argument: 'n_votes'. A run passes inference_mngr and settings to the"),
        (NoSettings, "got an unexpected keyword argument 'settings'"),
        (WrongUsage, "AgentFault: last_usage should be a Usage or None; got {'prompt': 3}"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_broken_agent_is_reported_with_what_to_do(broken: Callable[..., Agent], expected: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        check_agent(broken)
    assert expected in str(caught.value)

"""Requests and parsed replies of the model agents, in a real runner against a scripted endpoint."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

import msgspec
import pytest

from runner.agents.model import ReactAgent, ToolsAgent
from runner.config.profile import EndpointConfig
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.errors import AgentFault
from runner.inference.manager import InferenceManager
from runner.serve.mock_llm.app import ScriptResponder
from runner.serve.mock_llm.script import ScriptedCall, ScriptedReply
from runner.tracing import SpanList, Tracer
from runner.types import Chat, EpisodeEvent, Limits, Mode, Outcome, TokensStreamed, Trajectory
from tests.support.fakes import user
from tests.support.inference import agent_settings, episode_header
from tests.support.model_server import ModelServer

UP = "Thought: on.\nAction: up"
CALL = ScriptedReply(tool_calls=(ScriptedCall("up", {}),))


class EpisodeResult:
    """A played episode with its requests, events and spans."""

    requests: list[dict[str, Any]]
    trajectory: Trajectory

    def __init__(self) -> None:
        self.events: list[EpisodeEvent] = []
        self.spans = SpanList()

    @property
    def chats(self) -> list[Chat]:
        return [request["messages"] for request in self.requests]

    @property
    def observations(self) -> list[str | None]:
        return [step.observation[0]["content"] for step in self.trajectory.timesteps]


async def play_counter(
    *replies: ScriptedReply | str,
    env: str = "tests.support.fakes.Counter",
    format: Literal["auto", "react", "tools"] = "react",
    limits: Limits | None = None,
    stream: bool = False,
    goal: int = 3,
    mode: Mode = "strict",
) -> EpisodeResult:
    result = EpisodeResult()
    with ModelServer(ScriptResponder(replies), models=["scripted"]) as server:
        endpoint = EndpointConfig(url=server.url, name="test", kind="openai")
        settings = agent_settings(endpoint, model="scripted", format=format, stream=stream)
        runner = EpisodeFactory(
            env_cfg={"_target_": env, "goal": goal},
            agent_cfg={"_target_": "runner.agents.model.ReactAgent", "settings": settings},
            inference_mngr=InferenceManager(settings, {}),
            limits=limits or Limits(max_duration_s=30),
        )
        tracer = Tracer(collectors=[result.spans])
        header = msgspec.structs.replace(episode_header(), mode=mode)
        context = EpisodeContext(header=header, tracer=tracer, emit=result.events.append)
        result.trajectory = await runner.play_episode(context=context)
        result.requests = [json.loads(received.body) for received in server.received]
    return result


async def test_a_step_records_the_request_and_the_reply() -> None:
    result = await play_counter(ScriptedReply(content=UP, reasoning_content="hm"), f"<think>ha</think>{UP}")
    assert result.trajectory.outcome is Outcome.SUCCESS
    first, second, _ = result.chats
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[1]["content"] == "task 0: count to 3"
    assert second == [*first, {"role": "assistant", "content": UP}, user("at 1")]
    steps = result.trajectory.timesteps
    assert steps[0].chats == [[*first, {"role": "assistant", "content": UP, "reasoning_content": "hm"}]]
    assert steps[1].chats == [[*second, {"role": "assistant", "content": UP, "reasoning_content": "ha"}]]
    assert not any("hm" in json.dumps(chat) or "think" in json.dumps(chat[1:]) for chat in result.chats)


async def test_dialects_are_understood_in_strict_mode_alone() -> None:
    text = "[THINK]Action: wait[/THINK]**Action**: up<|im_end|>"
    strict, compat = [
        await play_counter(text, goal=1, mode=mode, limits=Limits(max_unparsed=1, max_duration_s=30))
        for mode in get_args(Mode)
    ]
    (step,) = strict.trajectory.timesteps
    assert step.action.text == "up"
    reply = {"role": "assistant", "content": "**Action**: up<|im_end|>", "reasoning_content": "Action: wait"}
    assert step.chats[0][-1] == reply
    step = compat.trajectory.timesteps[0]
    assert step.action.text == "wait[/THINK]**Action**: up<|im_end|>"
    assert step.chats[0][-1] == {"role": "assistant", "content": text}


async def test_each_step_has_its_token_usage_and_the_last_response_its_flow() -> None:
    result = await play_counter(UP, stream=True, goal=2, limits=Limits(max_rounds=7, max_duration_s=30))
    step, _ = result.trajectory.timesteps
    assert (step.endpoint, step.model, step.warnings) == ("test", "scripted", ())
    assert step.tokens is not None
    assert step.tokens.completion > 0
    assert step.ttft_s is not None
    assert step.tokens_per_s is not None
    streamed = [event for event in result.events if isinstance(event, TokensStreamed)]
    assert "".join(event.delta.text for event in streamed) == UP * 2
    assert next((event.delta.endpoint, event.delta.model) for event in streamed) == ("test", "scripted")
    assert {event.step for event in streamed} == {0, 1}
    ids = [flow.id for flow in result.spans.flows if flow.phase == "start"]
    assert result.trajectory.trace_last_response_flow_id in ids
    inferences = [span for span in result.spans.spans if span.category == "inference"]
    assert [span.attributes["gen_ai.request.model"] for span in inferences] == ["scripted", "scripted"]
    assert "You have at most 7 actions." in str(result.chats[0][0]["content"])


async def test_too_many_unparsed_replies_end_the_episode() -> None:
    result = await play_counter("hm", UP, "hm", "hm", limits=Limits(max_unparsed=2, max_duration_s=30))
    assert result.trajectory.outcome is Outcome.FAILURE
    assert [step.valid for step in result.trajectory.timesteps] == [False, True, False, False]
    expected = 'Invalid action. Expected a line "Action: <action>".'
    assert result.observations == [expected, "at 1", expected, expected]
    assert result.chats[1][-2:] == [{"role": "assistant", "content": "hm"}, user(expected)]


async def test_an_unknown_action_is_sent_to_the_environment() -> None:
    result = await play_counter("Action: jump", limits=Limits(max_rounds=4, max_unparsed=2, max_duration_s=30))
    assert result.trajectory.outcome is Outcome.TRUNCATED
    assert result.observations == ["at 0"] * 4
    assert not any(step.valid for step in result.trajectory.timesteps)


async def test_a_truncated_reply_is_reported_as_truncated() -> None:
    result = await play_counter(ScriptedReply(content="<think>hm", finish_reason="length"), UP, UP, UP)
    assert result.observations[0] == (
        'Invalid action. Expected a line "Action: <action>"; the answer was cut at its length limit: 3 tokens.'
    )
    assert result.chats[1][-2] == {"role": "assistant", "content": "(no answer)"}


@pytest.mark.parametrize("env", ["tests.support.fakes.Counter", "tests.support.fakes.ToolAnswerCounter"])
async def test_each_call_is_paired_with_its_answer(env: str) -> None:
    two = ScriptedReply(content="both", tool_calls=(ScriptedCall("up", {}, id="a"), ScriptedCall("up", {}, id="b")))
    result = await play_counter(two, CALL, CALL, env=env, format="tools")
    assert result.trajectory.outcome is Outcome.SUCCESS
    assert all(request["tools"] for request in result.requests)
    reply, first, second = result.chats[1][2:]
    assert [call["id"] for call in reply["tool_calls"]] == ["a", "b"]
    assert reply["content"] == "both"
    assert first == {"role": "tool", "content": "at 1", "tool_call_id": "a"}
    assert (second["role"], second["tool_call_id"]) == ("tool", "b")
    assert (second["content"] or "").startswith("Not executed")


async def test_an_unparsable_call_is_sent_back_as_text() -> None:
    broken = ScriptedReply(tool_calls=(ScriptedCall("up", "{to: 1"),))
    result = await play_counter(broken, CALL, CALL, CALL, format="tools")
    assert result.observations[0] == "Invalid action. Expected the arguments of up as a JSON object."
    assert result.chats[1][2:] == [
        {"role": "assistant", "content": "up({to: 1)"},
        user("Invalid action. Expected the arguments of up as a JSON object."),
    ]
    (sent,) = result.trajectory.timesteps[0].chats
    assert sent[-1]["tool_calls"][0]["function"]["arguments"] == "{to: 1"
    assert result.trajectory.outcome is Outcome.SUCCESS


async def test_a_call_written_as_text_is_answered_as_text() -> None:
    text = '```json\n{"thought": "on", "function_name": "up", "arguments": {}}\n```'
    result = await play_counter(text, env="tests.support.fakes.ToolAnswerCounter")
    assert result.trajectory.outcome is Outcome.SUCCESS
    assert result.chats[1][2:] == [{"role": "assistant", "content": text}, user("at 1")]
    assert [call.name for call in result.trajectory.timesteps[0].action.tool_calls] == ["up"]


async def test_an_endpoint_without_tools_gets_text_prompts() -> None:
    refusal = ScriptedReply(status=400, content="scripted does not support tools")
    result = await play_counter(CALL, refusal, UP, UP, format="auto")
    assert result.trajectory.outcome is Outcome.SUCCESS
    assert [bool(request.get("tools")) for request in result.requests] == [True, True, False, False]
    assert "tool call" in result.requests[0]["messages"][0]["content"]
    assert "tool call" not in result.requests[3]["messages"][0]["content"]
    assert result.chats[3][2:4] == [{"role": "assistant", "content": "up({})"}, user("at 1")]
    assert "learned tools as text" in result.trajectory.timesteps[1].warnings[0]


async def test_an_inference_failure_keeps_the_steps_so_far() -> None:
    result = await play_counter(UP, ScriptedReply(status=401, content="no key"))
    assert result.trajectory.outcome is Outcome.ERROR
    assert result.trajectory.error_info is not None
    assert result.trajectory.error_info.type == "inference_fault"
    assert result.observations == ["at 1"]


async def test_an_agent_outside_an_episode_sends_no_request() -> None:
    settings = agent_settings()
    for kind in (ReactAgent, ToolsAgent):
        agent = kind(inference_mngr=InferenceManager(settings, {}), settings=settings)
        with pytest.raises(AgentFault, match="enter"):
            await agent.act([user("go")], [])

"""Requests and parsed replies of the model agents, in a real runner against a scripted endpoint."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from runner.agents.model import ReactAgent, ToolsAgent
from runner.config.profile import EndpointConfig
from runner.episode.runner import EpisodeContext, Runner
from runner.errors import AgentFault
from runner.inference import InferenceManager
from runner.serve.mock_llm import ModelServer, ScriptedCall, ScriptedReply, ScriptResponder
from runner.tracing import SpanList, Tracer
from runner.types import Action, Chat, EpisodeEvent, Limits, Outcome, StepResult, TokensStreamed, Trajectory
from tests.support.fakes import Counter, user
from tests.support.inference import agent_settings, episode_header

UP = "Thought: on.\nAction: up"
CALL = ScriptedReply(tool_calls=(ScriptedCall("up", {}),))


class Answering(Counter):
    """Answers every tool call, as the embedded environments do."""

    def step(self, action: Action) -> StepResult:
        (message,), reward, done = super().step(action)
        texts = [message["content"], *["Not executed."] * (len(action.tool_calls) - 1)]
        answers: Chat = [
            {"role": "tool", "content": text, "tool_call_id": call.id}
            for text, call in zip(texts, action.tool_calls, strict=False)
        ]
        return answers or [message], reward, done


class PlayedEpisode:
    """An episode of ``Counter`` with a scripted model: the requests and the result."""

    requests: list[dict[str, Any]]
    episode: Trajectory

    def __init__(self) -> None:
        self.events: list[EpisodeEvent] = []
        self.spans = SpanList()

    @property
    def chats(self) -> list[Chat]:
        return [request["messages"] for request in self.requests]

    @property
    def observations(self) -> list[str | None]:
        return [step.observation[0]["content"] for step in self.episode.timesteps]


async def play(
    *replies: ScriptedReply | str,
    env: str = "tests.support.fakes.Counter",
    format: Literal["auto", "react", "tools"] = "react",
    limits: Limits | None = None,
    stream: bool = False,
    goal: int = 3,
) -> PlayedEpisode:
    played = PlayedEpisode()
    with ModelServer(ScriptResponder(replies), models=["scripted"]) as server:
        endpoint = EndpointConfig(url=server.url, name="test", kind="openai")
        settings = agent_settings(endpoint, model="scripted", format=format, stream=stream)
        runner = Runner(
            env_cfg={"_target_": env, "goal": goal},
            agent_cfg={"_target_": "runner.agents.model.ReactAgent", "settings": settings},
            inference_mngr=InferenceManager(settings, {}),
            limits=limits or Limits(max_duration_s=30),
        )
        tracer = Tracer(collectors=[played.spans])
        context = EpisodeContext(header=episode_header(), tracer=tracer, emit=played.events.append)
        played.episode = await runner.play_episode(context=context)
        played.requests = [json.loads(received.body) for received in server.received]
    return played


async def test_a_step_records_the_request_and_the_reply() -> None:
    played = await play(ScriptedReply(content=UP, reasoning_content="hm"), f"<think>ha</think>{UP}")
    assert played.episode.outcome is Outcome.SUCCESS
    first, second, _ = played.chats
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[1]["content"] == "task 0: count to 3"
    assert second == [*first, {"role": "assistant", "content": UP}, user("at 1")]
    steps = played.episode.timesteps
    assert steps[0].chats == [[*first, {"role": "assistant", "content": UP, "reasoning_content": "hm"}]]
    assert steps[1].chats == [[*second, {"role": "assistant", "content": UP, "reasoning_content": "ha"}]]
    assert not any("hm" in json.dumps(chat) or "think" in json.dumps(chat[1:]) for chat in played.chats)


async def test_each_step_has_its_token_usage() -> None:
    played = await play(UP, stream=True, goal=1)
    (step,) = played.episode.timesteps
    assert (step.endpoint, step.model, step.warnings) == ("test", "scripted", ())
    assert step.tokens is not None
    assert step.tokens.completion > 0
    assert step.ttft_s is not None
    assert step.tokens_per_s is not None
    streamed = [event for event in played.events if isinstance(event, TokensStreamed)]
    assert "".join(event.delta.text for event in streamed) == UP
    assert next((event.delta.endpoint, event.delta.model) for event in streamed) == ("test", "scripted")
    assert {event.step for event in streamed} == {0}


async def test_the_newest_response_is_where_an_arrow_starts() -> None:
    played = await play(UP, goal=2)
    ids = [flow.id for flow in played.spans.flows if flow.phase == "start"]
    assert played.episode.trace_last_response_flow_id in ids
    inferences = [span for span in played.spans.spans if span.category == "inference"]
    assert [span.attributes["gen_ai.request.model"] for span in inferences] == ["scripted", "scripted"]


async def test_replies_that_are_no_action_end_the_episode() -> None:
    played = await play("hm", UP, "hm", "hm", limits=Limits(max_unparsed=2, max_duration_s=30))
    assert played.episode.outcome is Outcome.FAILURE
    assert [step.valid for step in played.episode.timesteps] == [False, True, False, False]
    expected = 'Invalid action. Expected a line "Action: <action>".'
    assert played.observations == [expected, "at 1", expected, expected]
    assert played.chats[1][-2:] == [{"role": "assistant", "content": "hm"}, user(expected)]


async def test_an_action_that_does_not_exist_goes_to_the_environment() -> None:
    played = await play("Action: jump", limits=Limits(max_rounds=4, max_unparsed=2, max_duration_s=30))
    assert played.episode.outcome is Outcome.TRUNCATED
    assert played.observations == ["at 0"] * 4
    assert not any(step.valid for step in played.episode.timesteps)


async def test_a_truncated_reply_is_reported_as_truncated() -> None:
    played = await play(ScriptedReply(content="<think>hm", finish_reason="length"), UP, UP, UP)
    assert played.observations[0] == (
        'Invalid action. Expected a line "Action: <action>"; the answer was cut at its length limit.'
    )
    assert played.chats[1][-2] == {"role": "assistant", "content": "(no answer)"}


@pytest.mark.parametrize("env", ["tests.support.fakes.Counter", f"{__name__}.Answering"])
async def test_each_call_is_paired_with_its_answer(env: str) -> None:
    two = ScriptedReply(content="both", tool_calls=(ScriptedCall("up", {}, id="a"), ScriptedCall("up", {}, id="b")))
    played = await play(two, CALL, CALL, env=env, format="tools")
    assert played.episode.outcome is Outcome.SUCCESS
    assert all(request["tools"] for request in played.requests)
    reply, first, second = played.chats[1][2:]
    assert [call["id"] for call in reply["tool_calls"]] == ["a", "b"]
    assert reply["content"] == "both"
    assert first == {"role": "tool", "content": "at 1", "tool_call_id": "a"}
    assert (second["role"], second["tool_call_id"]) == ("tool", "b")
    assert (second["content"] or "").startswith("Not executed")


async def test_a_call_that_cannot_be_read_is_not_sent_again_as_one() -> None:
    broken = ScriptedReply(tool_calls=(ScriptedCall("up", "{to: 1"),))
    played = await play(broken, CALL, CALL, CALL, format="tools")
    assert played.observations[0] == "Invalid action. Expected the arguments of up as a JSON object."
    assert played.chats[1][2:] == [
        {"role": "assistant", "content": "up({to: 1)"},
        user("Invalid action. Expected the arguments of up as a JSON object."),
    ]
    (sent,) = played.episode.timesteps[0].chats
    assert sent[-1]["tool_calls"][0]["function"]["arguments"] == "{to: 1"
    assert played.episode.outcome is Outcome.SUCCESS


async def test_a_call_within_a_text_is_answered_by_a_text() -> None:
    text = '```json\n{"thought": "on", "function_name": "up", "arguments": {}}\n```'
    played = await play(text, env=f"{__name__}.Answering")
    assert played.episode.outcome is Outcome.SUCCESS
    assert played.chats[1][2:] == [{"role": "assistant", "content": text}, user("at 1")]
    assert [call.name for call in played.episode.timesteps[0].action.tool_calls] == ["up"]


async def test_an_endpoint_without_tools_gets_text_prompts() -> None:
    refusal = ScriptedReply(status=400, content="scripted does not support tools")
    played = await play(CALL, refusal, UP, UP, format="auto")
    assert played.episode.outcome is Outcome.SUCCESS
    assert [bool(request.get("tools")) for request in played.requests] == [True, True, False, False]
    assert "tool call" in played.requests[0]["messages"][0]["content"]
    assert "tool call" not in played.requests[3]["messages"][0]["content"]
    assert played.chats[3][2:4] == [{"role": "assistant", "content": "up({})"}, user("at 1")]
    assert "retried without tools" in played.episode.timesteps[1].warnings[0]


async def test_an_inference_failure_keeps_the_steps_so_far() -> None:
    played = await play(UP, ScriptedReply(status=400, content="too long"))
    assert played.episode.outcome is Outcome.ERROR
    assert played.episode.error_info is not None
    assert played.episode.error_info.type == "inference_fault"
    assert played.observations == ["at 1"]


async def test_an_agent_outside_an_episode_sends_no_request() -> None:
    settings = agent_settings()
    for kind in (ReactAgent, ToolsAgent):
        agent = kind(inference_mngr=InferenceManager(settings, {}), settings=settings)
        with pytest.raises(AgentFault, match="enter"):
            await agent.act([user("go")], [])

"""One step of an episode: let the agent act, check and execute its action, and check the observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from runner.episode.token_stream import TokenStream
from runner.episode.validation import check_act_result, check_schemas, check_step, check_usage, resolve_action
from runner.tracing import Tracer
from runner.types import (
    Action,
    Agent,
    Chat,
    Environment,
    InvalidAction,
    StepResult,
    TimeStep,
    ToolSchema,
)
from runner.types.maybe_async import CallMethod, call_here, maybe_await


@dataclass
class StepRunner:
    """Runs the steps of one episode.

    If the agent returns an ``InvalidAction``, the environment is not stepped; the observation is then an error message.

    Attributes:
        now: a monotonic clock in seconds.
        tokens: receives the model output that the agent streams during a step.
        call: calls the methods of the environment.
        unparsed: number of consecutive invalid actions up to the latest step.
    """

    environment: Environment
    agent: Agent
    tracer: Tracer
    now: Callable[[], float]
    tokens: TokenStream
    call: CallMethod = call_here
    unparsed: int = 0
    _schemas: list[ToolSchema] = field(default_factory=list)

    async def run_step(self, index: int, observation: Chat) -> TimeStep:
        """Run the step with this index: the agent acts on the observation and the environment executes the action."""
        with self.tracer.span("timestep", "timestep", index=index, semantic="timestep") as span:
            with self.tracer.span("get_tool_schemas", "environment"):
                schemas = self._check_schemas(await self.call(self.environment.get_tool_schemas))
            started = self.now()
            self.tokens.start_step(index)
            with self.tracer.span("agent.act", "agent"):  # pass copies, because the agent may change its lists
                chats, answer = check_act_result(await maybe_await(self.agent.act(observation.copy(), schemas.copy())))
            self.tokens.flush()
            model_s = self.now() - started
            action, (new_observation, reward, done), env_s = await self._execute(answer, schemas)
            span.set_attribute("reward", reward)
            span.set_attribute("done", done)
        step = TimeStep(
            index=index,
            chats=chats,
            action=action,
            observation=new_observation,
            reward=reward,
            done=done,
            available_tool_schemas=schemas,
            model_s=model_s,
            env_s=env_s,
        )
        return self._add_usage(step)

    async def _execute(
        self, answer: Action | InvalidAction, schemas: list[ToolSchema]
    ) -> tuple[Action, StepResult, float]:
        """Execute an action; return the action to store, the step's result and its seconds."""
        if isinstance(answer, InvalidAction):
            self.unparsed += 1
            new_observation: Chat = [{"role": "user", "content": f"Invalid action. Expected {answer.expected}."}]
            return Action(text=answer.text, valid=False), (new_observation, 0.0, False), 0.0
        self.unparsed = 0
        action = await resolve_action(self.environment, answer, schemas, self.call)
        resolved_at = self.now()
        with self.tracer.span("env.step", "environment"):
            result = check_step(await self.call(self.environment.step, answer))
        return action, result, self.now() - resolved_at

    def _add_usage(self, step: TimeStep) -> TimeStep:
        # ``isinstance(agent, SupportsUsage)`` would take a tenth of a step
        usage = check_usage(getattr(self.agent, "last_usage", None))
        return step if usage is None else msgspec.structs.replace(step, **msgspec.structs.asdict(usage))

    def _check_schemas(self, schemas: list[ToolSchema]) -> list[ToolSchema]:
        # Checks only schemas that differ from those of the previous step.
        if schemas != self._schemas:
            self._schemas = check_schemas(schemas)
        return self._schemas

"""One round of an episode: the agent is asked, its answer is checked and taken, the environment's reply is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from runner.episode.token_stream import TokenStream
from runner.episode.validation import check_schemas, check_step, check_turn, check_usage, resolve, settle
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


@dataclass
class Rounds:
    """Plays the rounds of one episode; ``now`` is a monotonic clock in seconds.

    A reply of the agent that names no action is answered here, the environment does not see it; ``unparsed`` counts
    those in a row.
    """

    environment: Environment
    agent: Agent
    tracer: Tracer
    now: Callable[[], float]
    tokens: TokenStream
    unparsed: int = 0
    _schemas: list[ToolSchema] = field(default_factory=list)

    async def play(self, index: int, observation: Chat) -> TimeStep:
        """The next round, from the newest observation on."""
        with self.tracer.span("timestep", "timestep", index=index, semantic="timestep") as span:
            with self.tracer.span("get_tool_schemas", "environment"):
                schemas = self._checked(await settle(self.environment.get_tool_schemas()))
            asked = self.now()
            self.tokens.begin(index)
            with self.tracer.span("agent.act", "agent"):  # gets copies: what it does to its lists is its own business
                chats, answer = check_turn(await settle(self.agent.act(observation.copy(), schemas.copy())))
            self.tokens.flush()
            model_s = self.now() - asked
            action, valid, (reply, reward, done), env_s = await self._take(answer, schemas)
            span.set_attribute("reward", reward)
            span.set_attribute("done", done)
        step = TimeStep(
            index=index,
            chats=chats,
            action=action,
            observation=reply,
            reward=reward,
            done=done,
            available_tool_schemas=schemas,
            valid=valid,
            model_s=model_s,
            env_s=env_s,
        )
        return self._with_usage(step)

    async def _take(
        self, answer: Action | InvalidAction, schemas: list[ToolSchema]
    ) -> tuple[Action, bool, StepResult, float]:
        """The action as it is stored, whether it is one, what came of it, and how long that took."""
        if isinstance(answer, InvalidAction):
            self.unparsed += 1
            reply: Chat = [{"role": "user", "content": f"Invalid action. Expected {answer.expected}."}]
            return Action(text=answer.text), False, (reply, 0.0, False), 0.0
        self.unparsed = 0
        action, valid = await resolve(self.environment, answer, schemas)
        resolved = self.now()
        with self.tracer.span("env.step", "environment"):
            result = check_step(await settle(self.environment.step(answer)))
        return action, valid, result, self.now() - resolved

    def _with_usage(self, step: TimeStep) -> TimeStep:
        # as ``SupportsUsage`` says, but asking for that by ``isinstance`` takes a tenth of a step
        usage = check_usage(getattr(self.agent, "last_usage", None))
        return step if usage is None else msgspec.structs.replace(step, **msgspec.structs.asdict(usage))

    def _checked(self, schemas: list[ToolSchema]) -> list[ToolSchema]:
        """A checked copy; mostly they are those of the step before, and need not be looked at again."""
        if schemas != self._schemas:
            self._schemas = check_schemas(schemas)
        return self._schemas

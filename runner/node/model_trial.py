"""Trial of the model endpoints: two turns with a tool on each, which show what it takes and how its model acts.

The turns are those of a run: the same agent asks, the same requests are sent, and refusals teach the same lessons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from runner.agents.model import ReactAgent
from runner.config import AgentSettings
from runner.config.profile import Capabilities
from runner.errors import InferenceFault
from runner.inference.errors import WRONG_KEY
from runner.inference.health import EndpointHealth
from runner.inference.manager import InferenceManager
from runner.inference.profile_models import Models
from runner.types import (
    Action,
    EpisodeHeader,
    EpisodeInfo,
    InvalidAction,
    Message,
    StreamDelta,
    Tokens,
    ToolSchema,
    Usage,
)
from runner.util.amounts import format_amount
from runner.util.clock import Clock, new_ulid
from runner.util.display_text import one_line

MAX_TRIAL_S: Final = 300.0
"""Maximum seconds of an endpoint's trial; a server may have to load its model first."""

_MOVE: Final[ToolSchema] = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Walk one step.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": ["up", "down", "left", "right"]}},
            "required": ["direction"],
        },
    },
}
_OBSERVATIONS: Final = (
    "You are in a corridor. The exit is two steps to the left.",
    "The exit is one step to the left.",
)

Act: TypeAlias = Literal["call", "text", "none"]
"""How a model acted: by a tool call, by an action in its text, or not at all."""

_ACTS: Final[dict[Act, str]] = {
    "call": "called its tool",
    "text": "wrote its action as text",
    "none": "gave no action",
}


class ModelTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What the trial of one endpoint found.

    Attributes:
        context_tokens: size of the context, from a refusal or from the server's list of models; None if it is unknown.
        tokens: sum of the answers; requests that the endpoint refused are not counted.
        cost: cost of the answers in the profile's currency; None if the model has no price.
        warnings: refusals with what they taught, and failures that have passed.
    """

    endpoint: str
    model: str
    acts: tuple[Act, ...]
    with_tools: Capabilities
    without_tools: Capabilities
    context_tokens: int | None
    tokens: Tokens
    cost: float | None
    duration_s: float
    warnings: tuple[str, ...]
    failure: str | None = None
    hint: str | None = None

    def describe(self, currency: str) -> str:
        known = msgspec.structs.replace(self.with_tools, context_tokens=self.context_tokens)
        found = known.describe(self.without_tools) or "as usual"
        acts = ", then ".join(_ACTS[act] for act in dict.fromkeys(self.acts))
        n_answers = f"{len(self.acts)} of {len(_OBSERVATIONS)} answers"
        usage = [n_answers, *([f"{self.tokens.total:,} tokens"] if self.tokens.total else [])]
        usage += [] if self.cost is None else [format_amount(self.cost, currency)]
        parts = [found, acts] if self.acts else []
        return "; ".join([*parts, ", ".join([*usage, f"{self.duration_s:.1f} s"])])


async def try_endpoints(
    model: str, models: Models, max_duration_s: float, on_endpoint: Callable[[str], None]
) -> list[ModelTrial]:
    """Try each endpoint alone, one after the other.

    Args:
        models: the endpoints; nothing that the trial learns stays with them.
        max_duration_s: the profile's limit of an episode; a trial takes at most as long, and at most ``MAX_TRIAL_S``.
        on_endpoint: receives the name of each endpoint before its trial.
    """
    trials = []
    for manager in models.each_alone():
        on_endpoint(manager.endpoints[0].name)
        trials.append(await _try(manager, models.settings, model, min(max_duration_s, MAX_TRIAL_S)))
    return trials


async def _try(manager: InferenceManager, settings: AgentSettings, model: str, limit_s: float) -> ModelTrial:
    """Try the only endpoint of a manager; the free check comes first, since its hints fit to failures of a turn."""
    (health,) = await manager.check(model)
    clock = Clock()
    header = EpisodeHeader(
        episode_id=new_ulid(), batch_id="preflight", env="Corridor", model=model, started_at=clock.now()
    )
    started, failures = clock.monotonic(), [""]

    def on_delta(delta: str | StreamDelta) -> None:
        if isinstance(delta, StreamDelta) and delta.failure and delta.restart:
            failures.append(delta.failure.removeprefix(f"{health.name}: "))

    def time_left_s() -> float:
        return started + limit_s - clock.monotonic()

    # Tools are tried whatever format the profile has: whether they work is what the trial is to show.
    agent = ReactAgent(inference_mngr=manager, settings=msgspec.structs.replace(settings, format="auto"))
    agent.enter(EpisodeInfo(header, time_left_s, on_delta, max_rounds=len(_OBSERVATIONS)))
    acts: list[Act] = []
    usages: list[Usage] = []
    failure = None
    try:
        for observation in _OBSERVATIONS:
            chats, action = await agent.act([{"role": "user", "content": observation}], [_MOVE])
            acts.append(_act(chats[0][-1], action))
            usages += [] if agent.last_usage is None else [agent.last_usage]
    except InferenceFault as exc:
        failure = failures[-1] or one_line(str(exc), 300)
    session = manager.session(header, model)
    known = session.capabilities(with_tools=True)
    costs = [usage.cost for usage in usages]
    return ModelTrial(
        endpoint=health.name,
        model=health.model,
        acts=tuple(acts),
        with_tools=known,
        without_tools=session.capabilities(with_tools=False),
        context_tokens=known.context_tokens or health.context_tokens,
        tokens=sum((usage.tokens or Tokens() for usage in usages), Tokens()),
        cost=None if None in costs or not costs else sum(filter(None, costs)),
        duration_s=clock.monotonic() - started,
        warnings=tuple(
            dict.fromkeys(text.removeprefix(f"{health.name}: ") for usage in usages for text in usage.warnings)
        ),
        failure=failure,
        hint=None if failure is None else _hint(health, failure),
    )


def _act(reply: Message, action: Action | InvalidAction) -> Act:
    if isinstance(action, InvalidAction):
        return "none"
    return "call" if reply.get("tool_calls") else "text"


def _hint(health: EndpointHealth, failure: str) -> str:
    if health.hint is not None:
        return health.hint
    if WRONG_KEY.search(failure):
        return health.key_hint
    if "agent." in failure:  # a time limit, with its key
        return "look whether the server still loads its model, or raise that limit"
    return "see the server's log; capabilities of this endpoint in the profile set what its requests have"

"""An inference manager over the endpoints of a test, with virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.config import AgentSettings
from runner.config.profile import EndpointConfig
from runner.inference.endpoint_state import Timing
from runner.inference.inference_session import InferenceSession
from runner.inference.manager import InferenceManager
from runner.tracing import Tracer
from runner.types import Chat, EpisodeHeader, Inference, StreamDelta, ToolSchema
from runner.util.clock import Clock

CHAT: Chat = [{"role": "user", "content": "count to 3"}]
TOOLS: list[ToolSchema] = [{"type": "function", "function": {"name": "up", "parameters": {"type": "object"}}}]
EPOCH = datetime(2025, 1, 1, 12, 0, 0, tzinfo=UTC)


class VirtualTime:
    """Time that passes only during waits; ``sleeps`` are the seconds of each wait."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.sleeps: list[float] = []

    def timing(self) -> Timing:
        clock = Clock(monotonic=lambda: self.elapsed_s, now=lambda: EPOCH + timedelta(seconds=self.elapsed_s))
        return Timing(clock=clock, sleep=self._sleep, uniform=max)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.elapsed_s += seconds
        await asyncio.sleep(0)


def agent_settings(*endpoints: EndpointConfig, **agent: Any) -> AgentSettings:  # noqa: ANN401 - the profile's own keys
    """Return settings with these endpoints and no fallback."""
    return AgentSettings(**({"mode": "local", "local_fallback": None, "endpoints": endpoints, "stream": False} | agent))


def inference_manager(
    *urls: str,
    environ: dict[str, str] | None = None,
    virtual_time: VirtualTime | None = None,
    **agent: Any,  # noqa: ANN401
) -> InferenceManager:
    """Return a manager of OpenAI-compatible endpoints named ``a``, ``b`` and so on."""
    endpoints = [EndpointConfig(url=url, name=chr(ord("a") + number), kind="openai") for number, url in enumerate(urls)]
    settings = agent_settings(*endpoints, **agent)
    return InferenceManager(settings, environ or {}, virtual_time.timing() if virtual_time else None)


def episode_header(episode_id: str = "episode-1") -> EpisodeHeader:
    return EpisodeHeader(episode_id=episode_id, batch_id="batch", env="Counter", started_at=EPOCH)


async def infer(
    target: InferenceManager | InferenceSession,
    *,
    tools: list[ToolSchema] | None = None,
    time_left_s: float = 60.0,
    on_delta: Callable[[StreamDelta], None] | None = None,
    tracer: Tracer | None = None,
) -> Inference:
    session = target if isinstance(target, InferenceSession) else target.session(episode_header())
    return await session.infer(CHAT, tools=tools or [], time_left_s=time_left_s, on_delta=on_delta, tracer=tracer)


def describe_delta(delta: StreamDelta) -> str:
    """Return the text, ``? endpoint`` for a new request, or ``<`` for a restart, each with the failure, if any."""
    request = f"? {delta.endpoint}" if delta.endpoint else ""
    return delta.text or request or f"{'<' * delta.restart} {delta.failure or ''}".strip()

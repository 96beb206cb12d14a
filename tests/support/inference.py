"""A manager over endpoints of a test, with a clock that only moves when somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.config.profile import AgentSettings, EndpointConfig
from runner.inference import Inference, InferenceManager, InferenceSession
from runner.inference.endpoint_state import Timing
from runner.tracing import Tracer
from runner.types import Chat, EpisodeHeader, StreamDelta, ToolSchema
from runner.util.clock import Clock

CHAT: Chat = [{"role": "user", "content": "count to 3"}]
TOOLS: list[ToolSchema] = [{"type": "function", "function": {"name": "up", "parameters": {"type": "object"}}}]
EPOCH = datetime(2025, 1, 1, 12, 0, 0, tzinfo=UTC)


class Waits:
    """Time that passes by waiting alone; ``slept`` are the seconds of each wait."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.slept: list[float] = []

    def timing(self) -> Timing:
        clock = Clock(monotonic=lambda: self.passed, now=lambda: EPOCH + timedelta(seconds=self.passed))
        return Timing(clock=clock, sleep=self._sleep, uniform=max)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.passed += seconds
        await asyncio.sleep(0)


def settings_of(*endpoints: EndpointConfig, **agent: Any) -> AgentSettings:  # noqa: ANN401 - the profile's own keys
    """A profile with these endpoints alone."""
    return AgentSettings(**({"mode": "local", "local_fallback": None, "endpoints": endpoints, "stream": False} | agent))


def manager_of(
    *urls: str,
    environ: dict[str, str] | None = None,
    waits: Waits | None = None,
    **agent: Any,  # noqa: ANN401
) -> InferenceManager:
    """A manager of OpenAI-compatible endpoints that are called ``a``, ``b`` and so on."""
    endpoints = [EndpointConfig(url=url, name=chr(ord("a") + number), kind="openai") for number, url in enumerate(urls)]
    settings = settings_of(*endpoints, **agent)
    return InferenceManager(settings, environ or {}, waits.timing() if waits else None)


def header(episode_id: str = "episode-1") -> EpisodeHeader:
    return EpisodeHeader(episode_id=episode_id, batch_id="batch", env="Counter", started_at=EPOCH)


async def infer(
    asked: InferenceManager | InferenceSession,
    *,
    tools: list[ToolSchema] | None = None,
    time_left_s: float = 60.0,
    on_delta: Callable[[StreamDelta], None] | None = None,
    tracer: Tracer | None = None,
) -> Inference:
    session = asked if isinstance(asked, InferenceSession) else asked.session(header())
    return await session.infer(CHAT, tools=tools or [], time_left_s=time_left_s, on_delta=on_delta, tracer=tracer)


def brief(piece: StreamDelta) -> str:
    """A piece in short: its text, who is asked, who failed, or that what came does not count."""
    asked = f"? {piece.endpoint}" if piece.endpoint else ""
    return piece.text or asked or f"{'<' * piece.restart} {piece.failure or ''}".strip()

"""What all sessions of a manager share: the endpoints, what is known of them, and how they are reached."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from runner.config.profile import AgentSettings
from runner.inference.api_keys import build_mask
from runner.inference.circuit_breaker import CircuitBreaker
from runner.inference.endpoints import AnyKind, EndpointInfo, EndpointSpec, Kind, resolve_endpoints, safe_url
from runner.inference.errors import EndpointFailure, Mask
from runner.inference.providers import find_kind
from runner.util.clock import Clock
from runner.util.text import one_line

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True)
class Timing:
    """Where time and chance come from."""

    clock: Clock = field(default_factory=Clock)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform


class LiveEndpoint:
    """An endpoint and what this process has learned of it; usable by several threads."""

    def __init__(self, spec: EndpointSpec, breaker: CircuitBreaker) -> None:
        """Start with what is configured."""
        self.spec = spec
        self.breaker = breaker
        self.kind: AnyKind = spec.kind
        self._without_tools: set[str] = set()

    async def find_kind(self, client: httpx.AsyncClient, mask: Mask, now: datetime) -> Kind:
        """What kind of server it is; asked once, until ``reconsider_kind`` says otherwise.

        Raises:
            EndpointFailure: when it does not answer, or cannot say what it is.
        """
        kind = self.kind
        if kind == "auto":
            self.kind = kind = await find_kind(client, self.spec, mask, now)
        return kind

    def reconsider_kind(self, failure: EndpointFailure) -> None:
        """Forget what was found out where another server may stand there now."""
        if failure.is_missing_path or failure.reason == "connection":
            self.kind = self.spec.kind

    def supports_tools_for(self, model: str) -> bool:
        """Whether this model takes tools, as far as is known."""
        return model not in self._without_tools

    def mark_without_tools(self, model: str) -> None:
        """Keep in mind that this model takes none."""
        self._without_tools.add(model)

    def info(self, model: str) -> EndpointInfo:
        """How it is shown."""
        shown = one_line(self.spec.model or model)
        return EndpointInfo(name=self.spec.name, url=safe_url(self.spec.url), kind=self.kind, model=shown)


@dataclass(frozen=True)
class InferenceContext:
    """The settings and everything that outlasts an episode."""

    settings: AgentSettings
    environ: Mapping[str, str]
    timing: Timing
    endpoints: tuple[LiveEndpoint, ...]
    mask: Mask

    @classmethod
    def build(cls, settings: AgentSettings, environ: Mapping[str, str], timing: Timing) -> InferenceContext:
        """From a profile's settings."""
        specs = resolve_endpoints(settings, environ)
        now = timing.clock.monotonic
        endpoints = tuple(LiveEndpoint(spec, CircuitBreaker(now)) for spec in specs)
        return cls(settings, environ, timing, endpoints, build_mask(specs, environ))

    def shown(self, exc: Exception) -> str:
        """What a failure says, without secrets and on one line."""
        return one_line(self.mask(str(exc)), 300)

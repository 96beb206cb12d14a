"""State that all inference sessions of a process share: the endpoints with their detected features."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import msgspec

from runner.config import AgentSettings
from runner.inference.api_keys import build_mask
from runner.inference.endpoints import AnyKind, EndpointInfo, EndpointSpec, Kind, resolve_endpoints
from runner.inference.errors import EndpointFailure, Mask
from runner.inference.gate import EndpointGate, LocalGate
from runner.inference.providers import find_kind
from runner.util.clock import Clock
from runner.util.display_text import one_line
from runner.util.urls import safe_url


class Timing(msgspec.Struct, frozen=True):
    """Sources of time and random numbers, replaceable in tests."""

    clock: Clock = msgspec.field(default_factory=Clock)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform


class LiveEndpoint:
    """An endpoint with the features that this process has detected; thread-safe."""

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self.kind: AnyKind = spec.kind

    async def find_kind(self, mask: Mask, now: datetime) -> Kind:
        """Detect the kind if it is ``auto`` and not known yet; raises ``EndpointFailure`` if it cannot be detected."""
        kind = self.kind
        if kind == "auto":
            self.kind = kind = await find_kind(self.spec, mask, now)
        return kind

    def reconsider_kind(self, failure: EndpointFailure) -> None:
        """Discard the detected kind of server if the failure may mean that another server now runs at the URL."""
        if failure.is_missing_path or failure.reason == "connection":
            self.kind = self.spec.kind

    def info(self, model: str) -> EndpointInfo:
        """If the endpoint has no own model, ``model`` is used."""
        display_model = one_line(self.spec.model or model)
        return EndpointInfo(name=self.spec.name, url=safe_url(self.spec.url), kind=self.kind, model=display_model)


class InferenceContext(msgspec.Struct, frozen=True):
    settings: AgentSettings
    environ: Mapping[str, str]
    timing: Timing
    endpoints: tuple[LiveEndpoint, ...]
    gate: EndpointGate
    mask: Mask

    @classmethod
    def build(
        cls, settings: AgentSettings, environ: Mapping[str, str], timing: Timing, gate: EndpointGate | None
    ) -> InferenceContext:
        """Without a ``gate``, the context gets its own."""
        specs = resolve_endpoints(settings, environ)
        gate = gate or LocalGate(specs, timing.clock.monotonic)
        return cls(settings, environ, timing, tuple(map(LiveEndpoint, specs)), gate, build_mask(specs, environ))

    def error_text(self, exc: Exception) -> str:
        """On one line of limited length, with secrets masked."""
        return one_line(self.mask(str(exc)), 300)

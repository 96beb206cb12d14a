"""The endpoints as this process knows them, with the detected kinds of their servers; all its sessions share them."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime

import msgspec

from runner.config import AgentSettings
from runner.inference.endpoints import GATEWAY_PATH, AnyKind, EndpointSpec, Kind
from runner.inference.errors import EndpointFailure, Mask, response_failure
from runner.inference.gate import LocalGate
from runner.inference.http import SmallResponse, fetch, retry_after_s
from runner.util.clock import Clock
from runner.util.display_text import one_line
from runner.util.json_accessors import as_dict, decode_json
from runner.util.urls import url_origin

NOT_OFFERED = (404, 405, 501)
"""Statuses of a server that has no such path, or not for this method."""
_GATEWAY_REFUSAL = re.compile(rb"missing field `messages`|tensorzero::")


class Timing(msgspec.Struct, frozen=True):
    """Sources of time and random numbers, replaceable in tests."""

    clock: Clock = msgspec.field(default_factory=Clock)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform


class LiveEndpoint:
    """An endpoint with the kind of server that this process has detected; thread-safe."""

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec, self.name = spec, spec.name
        self.kind: AnyKind = spec.kind

    async def find_kind(self, mask: Mask, now: datetime) -> Kind:
        """Detect the kind if it is not known yet, without an API key.

        Raises ``EndpointFailure`` if the server gives no answer or is too busy.
        """
        if (kind := self.kind) == "auto":
            self.kind = kind = await _detect_kind(url_origin(self.spec.url), mask, now)
        return kind

    def reconsider_kind(self, failure: EndpointFailure) -> None:
        """Discard the detected kind of server if the failure may mean that another server now runs at the URL."""
        if failure.is_missing_path or failure.reason == "connection":
            self.kind = self.spec.kind


async def _detect_kind(origin: str, mask: Mask, now: datetime) -> Kind:
    # TensorZero embedded in another program has no health; how its chat path refuses a request shows it.
    health, chat, tags = await asyncio.gather(
        fetch("GET", f"{origin}/health"),
        fetch("GET", origin + GATEWAY_PATH),
        fetch("GET", f"{origin}/api/tags"),
        return_exceptions=True,
    )
    if isinstance(health, SmallResponse) and "gateway" in as_dict(decode_json(health.body)):
        return "tensorzero"
    if isinstance(chat, SmallResponse) and chat.status == 405:
        with suppress(EndpointFailure):
            refusal = await fetch("POST", origin + GATEWAY_PATH, {"model": ""})
            if refusal.status == 400 and _GATEWAY_REFUSAL.search(refusal.body):
                return "tensorzero"
    listed = as_dict(decode_json(tags.body)) if isinstance(tags, SmallResponse) and tags.status == 200 else {}
    if "models" in listed and "data" not in listed:  # llama.cpp answers with both
        return "ollama"
    for response in (health, chat, tags):
        if isinstance(response, BaseException):
            raise response
        status = response.status
        if (status >= 500 and status not in NOT_OFFERED) or status == 429:  # it is starting or overloaded
            raise response_failure(status, response.body, mask, retry_after_s(response.retry_after, now))
    return "openai"


class InferenceContext(msgspec.Struct, frozen=True):
    settings: AgentSettings
    environ: Mapping[str, str]
    timing: Timing
    endpoints: tuple[LiveEndpoint, ...]
    gate: LocalGate
    mask: Mask

    def error_text(self, exc: Exception) -> str:
        """On one line of limited length, with secrets masked."""
        return one_line(self.mask(str(exc)), 300)

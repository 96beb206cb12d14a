"""What kind of server an endpoint is, found out by asking, and what exactly is asked of each kind."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from runner.inference.endpoints import EndpointSpec, Kind, origin_of
from runner.inference.errors import EndpointFailure, Mask, refusal
from runner.inference.http import Fetched, fetch
from runner.inference.lenient_json import as_dict, decoded
from runner.inference.retry import retry_after_s

if TYPE_CHECKING:
    import httpx

GATEWAY_PATH = "/openai/v1/chat/completions"
GATEWAY_PREFIX = "tensorzero::"
_CHAT_PATH = "/chat/completions"
NO_MODEL = {"model": "", "messages": []}
"""Refused by every server before any model runs; TensorZero's refusal says how a model has to be named."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of an endpoint whose kind is known.

    Attributes:
        url: of the chat completions.
        model: as it is sent.
    """

    kind: Kind
    url: str
    model: str

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return origin_of(self.url)

    @property
    def models_url(self) -> str:
        """Where an OpenAI-compatible server lists its models."""
        return self.url.partition("?")[0].removesuffix(_CHAT_PATH) + "/models"


def target_of(spec: EndpointSpec, kind: Kind, model: str) -> Target:
    """Where and under which name ``model`` is asked for.

    TensorZero answers under one path whatever the profile says, and has prefixes for models and functions.
    """
    model = spec.model or model
    if kind == "tensorzero":
        named = model if model.startswith(GATEWAY_PREFIX) else f"{GATEWAY_PREFIX}model_name::{model}"
        return Target(kind=kind, url=origin_of(spec.url) + GATEWAY_PATH, model=named)
    return Target(kind=kind, url=_chat_url(spec.url), model=model)


async def find_kind(client: httpx.AsyncClient, spec: EndpointSpec, mask: Mask, now: datetime) -> Kind:
    """Ask a server what it is, without any key, all questions at the same time.

    Raises:
        EndpointFailure: when it does not answer, or is in no state to say what it is.
    """
    if spec.kind != "auto":
        return spec.kind
    origin = origin_of(spec.url)
    health, refused, tags = await asyncio.gather(
        _answer(client, "GET", f"{origin}/health"),
        _answer(client, "POST", origin + GATEWAY_PATH, NO_MODEL),
        _answer(client, "GET", f"{origin}/api/tags"),
    )
    if isinstance(health, Fetched) and "gateway" in as_dict(decoded(health.body)):
        return "tensorzero"
    if isinstance(refused, Fetched) and refused.status != 200 and GATEWAY_PREFIX.encode() in refused.body:
        return "tensorzero"
    if isinstance(tags, Fetched) and tags.status == 200 and "models" in as_dict(decoded(tags.body)):
        return "ollama"
    for answer in (health, refused, tags):
        _fail_unless_well(answer, mask, now)
    return "openai"


async def _answer(client: httpx.AsyncClient, method: str, url: str, body: object = None) -> Fetched | EndpointFailure:
    try:
        return await fetch(client, method, url, body)
    except EndpointFailure as failure:
        return failure


def _fail_unless_well(answer: Fetched | EndpointFailure, mask: Mask, now: datetime) -> None:
    """A server that is starting, or has too much to do, may be any kind of server."""
    if isinstance(answer, EndpointFailure):
        raise answer
    if answer.status >= 500 or answer.status == 429:
        raise refusal(answer.status, answer.body, mask, retry_after_s(answer.retry_after, now))


def _chat_url(url: str) -> str:
    """The configured URL, completed where it names only a server or its version."""
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    if not base.endswith(_CHAT_PATH):
        base += _CHAT_PATH if base != origin_of(url) else f"/v1{_CHAT_PATH}"
    return base + mark + query

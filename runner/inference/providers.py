"""What kind of server an endpoint is, found out by asking, and what exactly is asked of each kind."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from runner.inference.circuit_breaker import retry_after_s
from runner.inference.endpoints import EndpointSpec, Kind, url_origin
from runner.inference.errors import EndpointFailure, Mask, response_failure
from runner.inference.http import SmallResponse, fetch
from runner.inference.lenient_json import as_dict, decode_json

if TYPE_CHECKING:
    import httpx

GATEWAY_PATH = "/openai/v1/chat/completions"
GATEWAY_PREFIX = "tensorzero::"
_CHAT_PATH = "/chat/completions"
NO_MODEL_BODY = {"model": "", "messages": []}
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
        return url_origin(self.url)

    @property
    def models_url(self) -> str:
        """Where an OpenAI-compatible server lists its models."""
        return self.url.partition("?")[0].removesuffix(_CHAT_PATH) + "/models"


def resolve_target(spec: EndpointSpec, kind: Kind, model: str) -> Target:
    """Where and under which name ``model`` is asked for.

    TensorZero answers under one path whatever the profile says, and has prefixes for models and functions.
    """
    model = spec.model or model
    if kind == "tensorzero":
        prefixed = model if model.startswith(GATEWAY_PREFIX) else f"{GATEWAY_PREFIX}model_name::{model}"
        return Target(kind=kind, url=url_origin(spec.url) + GATEWAY_PATH, model=prefixed)
    return Target(kind=kind, url=_chat_url(spec.url), model=model)


async def find_kind(client: httpx.AsyncClient, spec: EndpointSpec, mask: Mask, now: datetime) -> Kind:
    """Ask a server what it is, without any key, all questions at the same time.

    Raises:
        EndpointFailure: when it does not answer, or is in no state to say what it is.
    """
    if spec.kind != "auto":
        return spec.kind
    origin = url_origin(spec.url)
    health, rejection, tags = await asyncio.gather(
        _fetch_or_failure(client, "GET", f"{origin}/health"),
        _fetch_or_failure(client, "POST", origin + GATEWAY_PATH, NO_MODEL_BODY),
        _fetch_or_failure(client, "GET", f"{origin}/api/tags"),
    )
    if isinstance(health, SmallResponse) and "gateway" in as_dict(decode_json(health.body)):
        return "tensorzero"
    if isinstance(rejection, SmallResponse) and rejection.status != 200 and GATEWAY_PREFIX.encode() in rejection.body:
        return "tensorzero"
    if isinstance(tags, SmallResponse) and tags.status == 200 and "models" in as_dict(decode_json(tags.body)):
        return "ollama"
    for answer in (health, rejection, tags):
        _raise_unless_healthy(answer, mask, now)
    return "openai"


async def _fetch_or_failure(
    client: httpx.AsyncClient, method: str, url: str, body: object = None
) -> SmallResponse | EndpointFailure:
    try:
        return await fetch(client, method, url, body)
    except EndpointFailure as failure:
        return failure


def _raise_unless_healthy(answer: SmallResponse | EndpointFailure, mask: Mask, now: datetime) -> None:
    """A server that is starting, or has too much to do, may be any kind of server."""
    if isinstance(answer, EndpointFailure):
        raise answer
    if answer.status >= 500 or answer.status == 429:
        raise response_failure(answer.status, answer.body, mask, retry_after_s(answer.retry_after, now))


def _chat_url(url: str) -> str:
    """The configured URL, completed where it names only a server or its version."""
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    if not base.endswith(_CHAT_PATH):
        base += _CHAT_PATH if base != url_origin(url) else f"/v1{_CHAT_PATH}"
    return base + mark + query

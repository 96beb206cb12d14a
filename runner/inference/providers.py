"""Kinds of model servers (TensorZero, Ollama, OpenAI-compatible): their detection, URLs and model names."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime

import msgspec

from runner.inference.endpoints import EndpointSpec, Kind
from runner.inference.entrance import retry_after_s
from runner.inference.errors import EndpointFailure, Mask, response_failure
from runner.inference.http import SmallResponse, fetch
from runner.util.json_accessors import as_dict, decode_json
from runner.util.urls import url_origin

GATEWAY_PATH = "/openai/v1/chat/completions"
GATEWAY_PREFIX = "tensorzero::"
_GATEWAY_REFUSAL = re.compile(rb"missing field `messages`|tensorzero::")
_CHAT_PATH = "/chat/completions"
NOT_OFFERED = (404, 405, 501)
"""Statuses of a server that has no such path, or not for this method."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """URL and model name for requests to an endpoint whose kind of server is known."""

    kind: Kind
    url: str
    model: str

    @property
    def models_url(self) -> str:
        return self.url.partition("?")[0].removesuffix(_CHAT_PATH) + "/models"


def resolve_target(spec: EndpointSpec, kind: Kind, model: str) -> Target:
    """TensorZero has a fixed path, so the path of the profile's URL is ignored; its model names need a prefix."""
    model = spec.model or model
    if kind == "tensorzero":
        prefixed = model if model.startswith(GATEWAY_PREFIX) else f"{GATEWAY_PREFIX}model_name::{model}"
        return Target(kind=kind, url=url_origin(spec.url) + GATEWAY_PATH, model=prefixed)
    return Target(kind=kind, url=_chat_url(spec.url), model=model)


async def find_kind(spec: EndpointSpec, mask: Mask, now: datetime) -> Kind:
    """Detect the kind of server without an API key; raises ``EndpointFailure`` if it gives no answer or is too busy.

    TensorZero embedded in another program has no health; how its chat path refuses a request without messages shows it.
    """
    if spec.kind != "auto":
        return spec.kind
    origin = url_origin(spec.url)
    health, chat, tags = await asyncio.gather(
        _fetch_or_failure("GET", f"{origin}/health"),
        _fetch_or_failure("GET", origin + GATEWAY_PATH),
        _fetch_or_failure("GET", f"{origin}/api/tags"),
    )
    if isinstance(health, SmallResponse) and "gateway" in as_dict(decode_json(health.body)):
        return "tensorzero"
    if isinstance(chat, SmallResponse) and chat.status == 405:
        refusal = await _fetch_or_failure("POST", origin + GATEWAY_PATH, {"model": ""})
        if isinstance(refusal, SmallResponse) and refusal.status == 400 and _GATEWAY_REFUSAL.search(refusal.body):
            return "tensorzero"
    listed = as_dict(decode_json(tags.body)) if isinstance(tags, SmallResponse) and tags.status == 200 else {}
    if "models" in listed and "data" not in listed:  # llama.cpp answers with both
        return "ollama"
    for response in (health, chat, tags):
        _raise_unless_healthy(response, mask, now)
    return "openai"


async def _fetch_or_failure(method: str, url: str, body: object = None) -> SmallResponse | EndpointFailure:
    try:
        return await fetch(method, url, body)
    except EndpointFailure as failure:
        return failure


def _raise_unless_healthy(response: SmallResponse | EndpointFailure, mask: Mask, now: datetime) -> None:
    # The kind of a server that is starting or overloaded cannot be detected.
    if isinstance(response, EndpointFailure):
        raise response
    if (response.status >= 500 and response.status not in NOT_OFFERED) or response.status == 429:
        raise response_failure(response.status, response.body, mask, retry_after_s(response.retry_after, now))


def _chat_url(url: str) -> str:
    # Completes a URL that contains only a server or its version path.
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    if not base.endswith(_CHAT_PATH):
        base += _CHAT_PATH if base != url_origin(url) else f"/v1{_CHAT_PATH}"
    return base + mark + query

"""Model endpoints of a profile, in the order in which an inference tries them, and where requests to them go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner.config import AgentSettings
from runner.config.profile import Capabilities, RateLimit
from runner.util.urls import url_origin

Kind: TypeAlias = Literal["tensorzero", "ollama", "openai"]
AnyKind: TypeAlias = Literal["auto"] | Kind

OLLAMA_PORT = 11434
CHECK_TIMEOUT_S = 2.0
"""Maximum duration of a health check, in seconds."""
NO_ENDPOINT = "the profile has no model endpoint; set agent.endpoints, agent.api_endpoint or agent.local_fallback"
GATEWAY_KEY_ENV, OLLAMA_HOST_ENV = "TENSORZERO_API_KEY", "OLLAMA_HOST"
GATEWAY_PATH = "/openai/v1/chat/completions"
GATEWAY_PREFIX = "tensorzero::"

_CHAT_PATH = "/chat/completions"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Loopback address for clients, by the wildcard address that a server listens on."""


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One configured endpoint; it has the names of API key variables, but no key.

    Attributes:
        model: the model of this endpoint; None: the model of the episode.
        api_key_env: environment variable that must contain the API key; None: no key is required.
        optional_key_env: environment variable that may contain an API key; the key is sent only to TensorZero.
        capabilities: what the endpoint takes, by the profile; None if that is not set there.
    """

    name: str
    url: str
    kind: AnyKind = "auto"
    model: str | None = None
    api_key_env: str | None = None
    optional_key_env: str | None = None
    limit: RateLimit = RateLimit()
    token_ids: bool = False
    capabilities: Capabilities | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """URL and model name for requests to an endpoint whose kind of server is known."""

    kind: Kind
    url: str
    model: str

    @property
    def models_url(self) -> str:
        return self.url.partition("?")[0].removesuffix(_CHAT_PATH) + "/models"


def resolve_endpoints(settings: AgentSettings, environ: Mapping[str, str]) -> tuple[EndpointSpec, ...]:
    """With unique names: the gateway, the named endpoints, Ollama."""
    limits = settings.rate_limits
    return tuple(
        msgspec.structs.replace(spec, name=name, limit=limits.get(name, spec.limit))
        for name, spec in zip(settings.endpoint_names, _unnamed_specs(settings, environ), strict=True)
    )


def resolve_target(spec: EndpointSpec, kind: Kind, model: str) -> Target:
    """TensorZero has a fixed path, so the path of the profile's URL is ignored; its model names need a prefix."""
    model = spec.model or model
    if kind == "tensorzero":
        prefixed = model if model.startswith(GATEWAY_PREFIX) else f"{GATEWAY_PREFIX}model_name::{model}"
        return Target(kind=kind, url=url_origin(spec.url) + GATEWAY_PATH, model=prefixed)
    base, mark, query = spec.url.partition("?")
    base = base.rstrip("/")
    if not base.endswith(_CHAT_PATH):  # only a server or its version path
        base += _CHAT_PATH if base != url_origin(spec.url) else f"/v1{_CHAT_PATH}"
    return Target(kind=kind, url=base + mark + query, model=model)


def ollama_url(environ: Mapping[str, str]) -> str:
    """Return Ollama's URL from the variable OLLAMA_HOST; as in Ollama, its scheme and port are optional."""
    configured = environ.get(OLLAMA_HOST_ENV, "").strip().strip("'\"")
    scheme, separator, rest = configured.rpartition("://")
    if scheme not in ("", "http", "https"):
        return f"http://127.0.0.1:{OLLAMA_PORT}"
    default_port = {"": OLLAMA_PORT, "http": 80, "https": 443}[scheme]
    return _with_port(scheme if separator else "http", rest.partition("/")[0], default_port)


def _with_port(scheme: str, netloc: str, default_port: int) -> str:
    try:
        parts = urlsplit(f"//{netloc}")
        host, port = parts.hostname or "127.0.0.1", parts.port or default_port
    except ValueError:  # an invalid port or IPv6 address
        return f"http://127.0.0.1:{OLLAMA_PORT}"
    userinfo, at, _ = netloc.rpartition("@")
    host = _ANY_ADDRESS.get(host) or (f"[{host}]" if ":" in host else host)
    return f"{scheme}://{userinfo}{at}{host}:{port}"


def _unnamed_specs(settings: AgentSettings, environ: Mapping[str, str]) -> Iterator[EndpointSpec]:
    if settings.mode == "api":
        yield EndpointSpec(name="", url=settings.api_endpoint, optional_key_env=GATEWAY_KEY_ENV)
    for entry in settings.endpoints:
        yield EndpointSpec(
            name="",
            url=entry.url,
            kind=entry.kind,
            model=entry.model,
            api_key_env=entry.api_key_env,
            token_ids=entry.token_ids,
            capabilities=entry.capabilities,
        )
    if settings.local_fallback is not None:
        yield EndpointSpec(name="", url=ollama_url(environ), kind="ollama", model=settings.local_fallback)

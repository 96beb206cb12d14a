"""Model endpoints of a profile, in the order in which an inference tries them, and where requests to them go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner.config import AgentSettings
from runner.config.profile import EndpointConfig, RateLimit
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


class EndpointSpec(EndpointConfig, frozen=True):
    """An endpoint of the profile, the gateway or Ollama; it has the names of API key variables, but no key.

    ``optional_key_env`` is a variable that may contain an API key, which is sent only to TensorZero.
    """

    name: str
    optional_key_env: str | None = None
    limit: RateLimit = RateLimit()


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
    specs = [EndpointSpec(**{**msgspec.structs.asdict(entry), "name": ""}) for entry in settings.endpoints]
    if settings.mode == "api":
        specs.insert(0, EndpointSpec(name="", url=settings.api_endpoint, optional_key_env=GATEWAY_KEY_ENV))
    if (model := settings.local_fallback) is not None:
        specs.append(EndpointSpec(name="", url=ollama_url(environ), kind="ollama", model=model))
    return tuple(
        msgspec.structs.replace(spec, name=name, limit=settings.rate_limits.get(name, spec.limit))
        for name, spec in zip(settings.endpoint_names, specs, strict=True)
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
    scheme, _, rest = configured.rpartition("://")
    if scheme not in ("", "http", "https"):
        return f"http://127.0.0.1:{OLLAMA_PORT}"
    default_port = {"": OLLAMA_PORT, "http": 80, "https": 443}[scheme]
    netloc = rest.partition("/")[0]
    try:
        parts = urlsplit(f"//{netloc}")
        host, port = parts.hostname or "127.0.0.1", parts.port or default_port
    except ValueError:  # an invalid port or IPv6 address
        return f"http://127.0.0.1:{OLLAMA_PORT}"
    userinfo, at, _ = netloc.rpartition("@")
    host = _ANY_ADDRESS.get(host) or (f"[{host}]" if ":" in host else host)
    return f"{scheme or 'http'}://{userinfo}{at}{host}:{port}"

"""API keys of model endpoints: read from environment variables, and removed from everything shown or stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeGuard
from urllib.parse import urlsplit

import msgspec

from runner.config import AgentSettings
from runner.inference.chat_format import ModelReply
from runner.inference.endpoints import GATEWAY_KEY_ENV, OLLAMA_HOST_ENV, AnyKind, EndpointSpec, Kind
from runner.inference.errors import EndpointFailure, Mask
from runner.types import DeltaPart, StreamDelta
from runner.util.display_text import MASK, masker
from runner.util.urls import split_login

MIN_KEY_LENGTH = 16
"""Minimum characters of a key to redact; a shorter key is a placeholder such as ``EMPTY``, not a secret."""

_SENDABLE = re.compile(r"[\x21-\x7e]{1,4096}")
_DECODER = msgspec.json.Decoder(ModelReply)


def read_api_key(spec: EndpointSpec, kind: Kind, environ: Mapping[str, str]) -> str | None:
    """Raises ``EndpointFailure`` if a key is missing or no valid header, or the URL has a login in addition to it."""
    name = _key_variable(spec, kind)
    value = environ.get(name, "").strip() if name else ""
    if value and not _SENDABLE.fullmatch(value):
        raise EndpointFailure("configuration", f"{name} contains characters that are not allowed in a key")
    if spec.api_key_env and not value:
        raise EndpointFailure("configuration", f"the variable {name} for its API key is not set")
    if spec.api_key_env and "@" in urlsplit(spec.url).netloc:
        raise EndpointFailure(
            "configuration", f"its URL has a login and {name} has a key, but only one of them can be sent"
        )
    return value or None


def _key_variable(spec: EndpointSpec, kind: AnyKind) -> str | None:
    return spec.api_key_env or (spec.optional_key_env if kind == "tensorzero" else None)


def key_advice(spec: EndpointSpec, kind: AnyKind) -> str:
    if (name := _key_variable(spec, kind)) is not None:
        return f"set the variable {name} to a valid key"
    if spec.optional_key_env is not None:
        return f"{spec.optional_key_env} is only for TensorZero; list this server in agent.endpoints with api_key_env"
    return "name the variable that holds its key, with api_key_env of the endpoint or with --key-env"


def variable_names(settings: AgentSettings) -> list[str]:
    names = set(settings.key_names)
    if settings.mode == "api":
        names.add(GATEWAY_KEY_ENV)
    if settings.local_fallback is not None:
        names.add(OLLAMA_HOST_ENV)
    return sorted(names)


def endpoint_variables(settings: AgentSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a worker on another machine needs for its endpoints; may be secret."""
    return {name: environ[name] for name in variable_names(settings) if name in environ}


def build_mask(specs: tuple[EndpointSpec, ...], environ: Mapping[str, str]) -> Mask:
    """Return a function like ``runner.util.display_text.mask`` that also hides the endpoints' keys and logins."""
    named = {f"key of {spec.name}": environ.get(spec.api_key_env, "") for spec in specs if spec.api_key_env}
    logins = {f"password of {spec.name}": split_login(spec.url)[1] for spec in specs}
    return masker({**environ, **named, **logins})


def is_secret(key: str | None) -> TypeGuard[str]:
    return key is not None and len(key) >= MIN_KEY_LENGTH


def redact_key(reply: ModelReply, key: str | None) -> ModelReply:
    if not is_secret(key):
        return reply
    encoded = without = msgspec.json.encode(reply)
    forms = (msgspec.json.encode(form)[1:-1] for form in _forms(key))
    for form in sorted(forms, key=len, reverse=True):
        without = without.replace(form, MASK.encode())
    return reply if without == encoded else _DECODER.decode(without)


def _forms(key: str) -> list[str]:
    # The key as plain text and as text inside JSON strings (tool arguments), longest first.
    quoted = msgspec.json.encode(key).decode()[1:-1]
    return sorted({key, quoted, quoted.replace("/", "\\/")}, key=len, reverse=True)


class DeltaFilter:
    """Redacts a key in a streamed answer, even if it is split between deltas, separately in each part and tool call."""

    def __init__(self, key: str, emit: Callable[[StreamDelta], None]) -> None:
        self._forms = _forms(key)
        self._emit = emit
        self._withheld: dict[tuple[DeltaPart, int], StreamDelta] = {}

    def add(self, delta: StreamDelta) -> None:
        """The end that may begin the key is withheld; a restart discards it."""
        if delta.restart:
            self._withheld.clear()
            self._emit(delta)
            return
        part = delta.part, delta.call
        earlier = self._withheld[part].text if part in self._withheld else ""
        text = _redact(earlier + delta.text, self._forms)
        longest = min(len(self._forms[0]) - 1, len(text))
        starts = (size for size in range(longest, 0, -1) if any(form.startswith(text[-size:]) for form in self._forms))
        shown = text[: len(text) - next(starts, 0)]
        filtered = msgspec.structs.replace(delta, text=shown, tool=_redact(delta.tool, self._forms))
        self._withheld[part] = msgspec.structs.replace(filtered, n=0, text=text[len(shown) :])
        if shown or not delta.text:
            self._emit(filtered)

    def flush(self) -> None:
        for rest in self._withheld.values():
            if rest.text:
                self._emit(rest)


def _redact(text: str, forms: list[str]) -> str:
    for form in forms:
        text = text.replace(form, MASK)
    return text

"""Health checks of endpoints: whether each answers and knows its model; no check runs a model."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner.config.profile import GATEWAY, RateLimit
from runner.inference.api_keys import key_advice, read_api_key
from runner.inference.endpoint_state import NOT_OFFERED, InferenceContext, LiveEndpoint
from runner.inference.endpoints import CHECK_TIMEOUT_S, AnyKind, Target, resolve_target
from runner.inference.errors import EndpointFailure, response_failure
from runner.inference.http import SmallResponse, bearer_header, fetch
from runner.util.display_text import one_line
from runner.util.json_accessors import as_count, as_dict, as_list, as_text, decode_json
from runner.util.urls import safe_url, url_origin

SLOW_AFTER_S = 1.0
"""Seconds of a request above which the endpoint counts as slow."""

Status: TypeAlias = Literal["up", "slow", "down", "misconfigured"]

_CONTEXT_FIELDS = ("max_model_len", "max_context_length", "context_length", "context_window")
"""Fields of a listed model that vLLM and SGLang, Mistral, OpenRouter and Kimi, and Groq have."""
_N_LISTED = 8
"""Maximum number of a server's models that a cause names."""
_LACKS_SCOPE = re.compile(rb"(?i)scope|permission")
"""Text of a refusal of a valid key that may only ask models."""
_UNKNOWN_TOOL = "agentgym_preflight"
"""Name of an undefined tool. TensorZero first looks up the model and then rejects the tool, so no model runs."""


class EndpointHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health of one endpoint.

    Attributes:
        latency_s: seconds of the last request of the check; None if it got no response.
        url: URL that a run uses; if the kind of server is unknown, the URL of the profile.
        model: model name that a run sends; if the kind of server is unknown, the name in the profile.
        note: how the URL or the model name differs from the profile, or None.
        rest_s: seconds for which the circuit breaker still blocks requests; None if it does not.
        context_tokens: size of the model's context, if the server's list of models has it.
    """

    name: str
    kind: AnyKind
    status: Status
    latency_s: float | None = None
    cause: str | None = None
    hint: str | None = None
    url: str = ""
    model: str = ""
    note: str | None = None
    rest_s: float | None = None
    limit: RateLimit = RateLimit()
    context_tokens: int | None = None
    listed: tuple[str, ...] = ()
    key_hint: str = ""


async def check_endpoints(
    context: InferenceContext, model: str, timeout_s: float = CHECK_TIMEOUT_S
) -> list[EndpointHealth]:
    checks = [_EndpointCheck(context, endpoint, model, timeout_s) for endpoint in context.endpoints]
    return list(await asyncio.gather(*(check.run() for check in checks)))


class _EndpointCheck:
    def __init__(self, context: InferenceContext, endpoint: LiveEndpoint, model: str, timeout_s: float) -> None:
        self._context = context
        self._endpoint = endpoint
        self._model = model
        self._timeout_s = timeout_s
        self._target: Target | None = None
        self._latency_s: float | None = None
        self._has_response = False
        self._context_tokens: int | None = None
        self._listed: tuple[str, ...] = ()

    async def run(self) -> EndpointHealth:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._run_checks()
        except TimeoutError:
            if self._has_response:
                return self._health("slow", f"it answers, but not to all requests within {self._timeout_s:g} s")
            return self._health("down", f"no answer within {self._timeout_s:g} s", self._start_hint())
        except EndpointFailure as failure:
            self._endpoint.reconsider_kind(failure)
            wrong = failure.reason in ("configuration", "request")
            hint = self._configuration_hint(failure) if wrong else self._start_hint()
            return self._health("misconfigured" if wrong else "down", self._context.error_text(failure), hint)
        return self._health("slow" if (self._latency_s or 0) > SLOW_AFTER_S else "up")

    async def _run_checks(self) -> None:
        spec, context = self._endpoint.spec, self._context
        was_known = self._endpoint.kind != "auto"
        kind = await self._endpoint.find_kind(context.mask, context.timing.clock.now())
        self._has_response = not was_known
        self._target = target = resolve_target(spec, kind, self._model)
        headers = bearer_header(read_api_key(spec, target.kind, context.environ))
        if target.kind == "tensorzero":
            await self._check_gateway(target, headers)
            return
        urls = [target.models_url, *([f"{url_origin(target.url)}/api/tags"] if target.kind == "ollama" else [])]
        replies = await asyncio.gather(*(self._fetch("GET", url, headers) for url in urls))
        self._check_model_listed(target, replies[-1])
        await self._check_chat_path(target, headers, is_listed=_models(replies[0]) is not None)

    def _check_model_listed(self, target: Target, reply: SmallResponse) -> None:
        if target.kind == "ollama":
            self._listed = _names(self._require_ok(reply), "models", "name")
            if not {target.model, f"{target.model}:latest"} & {*self._listed}:
                raise _unknown_model(target.model, "is not pulled")
            return
        self._listed = () if reply.status in NOT_OFFERED else _names(self._require_ok(reply), "data", "id")
        if self._listed and target.model not in self._listed:  # some servers list no models
            names = ", ".join(one_line(name, 60) for name in self._listed[:_N_LISTED])
            more = ", ..." if len(self._listed) > _N_LISTED else ""
            raise _unknown_model(target.model, f"is not among the server's models: {names}{more}")
        listed = map(as_dict, _models(reply) or ())
        entry = next((each for each in listed if each.get("id") == target.model), {})
        counts = (as_count(entry.get(name)) for name in _CONTEXT_FIELDS)
        self._context_tokens = next(filter(None, counts), None)

    async def _check_chat_path(self, target: Target, headers: dict[str, str], *, is_listed: bool) -> None:
        """Check the path without a message: a list of models beside it, or the refusal of a request without any.

        Some servers list their models without a key, and refuse a wrong key on every other path.
        """
        method, body = ("GET", None) if is_listed else ("POST", {"model": target.model})
        try:
            reply = await self._fetch(method, target.url, headers, body)
        except EndpointFailure:  # it has answered before; a simple server fails without messages
            return
        failure = response_failure(reply.status, reply.body, self._context.mask)
        if is_listed:
            if reply.status == 401 and not _LACKS_SCOPE.search(reply.body):
                raise failure
            return
        if reply.status == 200 and "choices" not in as_dict(decode_json(reply.body)):
            raise EndpointFailure("configuration", "its response is not a chat completion", status=404)
        if reply.status not in (200, 500) and failure.reason != "request":
            raise failure

    async def _check_gateway(self, target: Target, headers: dict[str, str]) -> None:
        choice = {"type": "function", "function": {"name": _UNKNOWN_TOOL}}
        body = {"model": target.model, "messages": [], "tool_choice": choice}
        reply = await self._fetch("POST", target.url, headers, body)
        failure = response_failure(reply.status, reply.body, self._context.mask)
        if reply.status != 200 and failure.reason != "request":  # the expected response of a healthy gateway
            raise failure

    async def _fetch(self, method: str, url: str, headers: dict[str, str], body: object = None) -> SmallResponse:
        now = self._context.timing.clock.monotonic
        started = now()
        reply = await fetch(method, url, body, headers)
        self._has_response, self._latency_s = True, now() - started
        return reply

    def _require_ok(self, reply: SmallResponse) -> SmallResponse:
        if reply.status != 200:
            raise response_failure(reply.status, reply.body, self._context.mask)
        return reply

    @property
    def _kind(self) -> AnyKind:
        # The kind that was checked, even if a failure has reset the detected kind since.
        return self._endpoint.kind if self._target is None else self._target.kind

    def _start_hint(self) -> str:
        spec, kind = self._endpoint.spec, self._kind
        if kind == "ollama":
            return "start it with: ollama serve"
        if kind == "tensorzero" or spec.name == GATEWAY:
            return "start TensorZero's gateway, or set TENSORZERO_URL to its URL"
        return f"start the server at {safe_url(spec.url)}, or correct its URL"

    def _configuration_hint(self, failure: EndpointFailure) -> str:
        model = one_line(self._endpoint.spec.model or self._model, 100)
        if failure.is_missing_path and self._target is not None:
            path = one_line(urlsplit(self._target.url).path, 200)
            return f"no chat completions at {path}: correct the endpoint's URL"
        if failure.is_about_key:
            return key_advice(self._endpoint.spec, self._kind)
        match self._kind:
            case "ollama":
                return f"pull it with: ollama pull {model}"
            case "tensorzero":
                return f"add [models.{model}] to the gateway's configuration, or change agent.model in the profile"
        return "check the endpoint's URL and model"

    def _health(self, status: Status, cause: str | None = None, hint: str | None = None) -> EndpointHealth:
        spec, target = self._endpoint.spec, self._target
        configured = spec.url, spec.model or self._model
        used = configured if target is None else (target.url, target.model)
        url, model = safe_url(used[0]), one_line(used[1])
        return EndpointHealth(
            name=spec.name,
            kind=self._kind,
            status=status,
            latency_s=self._latency_s,
            cause=cause,
            hint=hint,
            url=url,
            model=model,
            note=f"uses {url} with model {model}" if used != configured else None,
            rest_s=self._context.gate.wait_s(spec.name) or None,
            limit=spec.limit,
            context_tokens=self._context_tokens,
            listed=self._listed,
            key_hint=key_advice(spec, self._kind),
        )


def _names(reply: SmallResponse, key: str, field: str) -> tuple[str, ...]:
    entries = as_list(as_dict(decode_json(reply.body)).get(key))
    return tuple(filter(None, (as_text(as_dict(entry).get(field)) for entry in entries)))


def _models(reply: SmallResponse) -> list[Any] | None:
    data = as_dict(decode_json(reply.body)).get("data")
    return data if reply.status == 200 and isinstance(data, list) else None


def _unknown_model(model: str, problem: str) -> EndpointFailure:
    return EndpointFailure(
        "configuration", f"the model {one_line(model, 100)} {problem}", status=404, unknown_model=True
    )

"""Health checks of endpoints: whether each answers and knows its model; no check runs a model."""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner.config.profile import GATEWAY, RateLimit
from runner.inference.api_keys import read_api_key
from runner.inference.endpoint_state import InferenceContext, LiveEndpoint
from runner.inference.endpoints import CHECK_TIMEOUT_S, AnyKind, safe_url
from runner.inference.errors import EndpointFailure, response_failure
from runner.inference.http import SmallResponse, bearer_header, fetch, model_client
from runner.inference.providers import NO_MODEL_BODY, Target, resolve_target
from runner.inference.refusals import WRONG_KEY
from runner.util.display_text import one_line
from runner.util.http_client import HttpClient
from runner.util.json_accessors import as_count, as_dict, as_list, as_text, decode_json

SLOW_AFTER_S = 1.0
"""Seconds of a request above which the endpoint counts as slow."""

_CONTEXT_FIELDS = ("max_model_len", "max_context_length", "context_length", "context_window")
"""Fields of a listed model that vLLM and SGLang, Mistral, OpenRouter and Kimi, and Groq have."""

Status: TypeAlias = Literal["up", "slow", "down", "misconfigured"]

_UNKNOWN_TOOL = "agentgym_preflight"
"""Name of an undefined tool. TensorZero first looks up the model and then rejects the tool, so no model runs."""


class EndpointHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health of one endpoint.

    Attributes:
        latency_s: seconds of the last request of the check; None if it got no response.
        cause: why the endpoint is unhealthy, or None.
        hint: what to do about the cause, or None.
        url: URL that a run uses; if the kind of server is unknown, the URL of the profile.
        model: model name that a run sends; if the kind of server is unknown, the name in the profile.
        note: how the URL or the model name differs from the profile, or None.
        rest_s: seconds for which the circuit breaker still blocks requests; None if it does not.
        limit: the rate limits of the profile.
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


async def check_endpoints(
    context: InferenceContext, model: str, timeout_s: float = CHECK_TIMEOUT_S
) -> list[EndpointHealth]:
    """Check all endpoints concurrently, for at most ``timeout_s`` seconds."""
    client = await model_client()
    return list(
        await asyncio.gather(
            *(_EndpointCheck(context, client, endpoint, model, timeout_s).run() for endpoint in context.endpoints)
        )
    )


class _EndpointCheck:
    def __init__(
        self,
        context: InferenceContext,
        client: HttpClient,
        endpoint: LiveEndpoint,
        model: str,
        timeout_s: float,
    ) -> None:
        self._context = context
        self._client = client
        self._endpoint = endpoint
        self._model = model
        self._timeout_s = timeout_s
        self._target: Target | None = None
        self._latency_s: float | None = None
        self._has_response = False
        self._context_tokens: int | None = None

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
        kind = await self._endpoint.find_kind(self._client, context.mask, context.timing.clock.now())
        self._has_response = not was_known
        self._target = target = resolve_target(spec, kind, self._model)
        key = read_api_key(spec, target.kind, context.environ)
        headers = bearer_header(key)
        if target.kind == "tensorzero":
            await self._check_gateway(target, headers)
            return
        url = f"{target.origin}/api/tags" if target.kind == "ollama" else target.models_url
        listed, rejection = await asyncio.gather(
            self._fetch("GET", url, headers),
            self._fetch("POST", target.url, headers, {**NO_MODEL_BODY, "model": target.model}),
        )
        self._check_model_listed(target, listed)
        self._check_chat_path(rejection)

    def _check_model_listed(self, target: Target, listed: SmallResponse) -> None:
        if target.kind == "ollama":
            if not {target.model, f"{target.model}:latest"} & _names(self._require_ok(listed), "models", "name"):
                raise _unknown_model(target.model, "is not pulled")
            return
        names = set() if listed.status in (404, 405) else _names(self._require_ok(listed), "data", "id")
        if names and target.model not in names:  # some servers list no models
            raise _unknown_model(target.model, "is not among its models")
        self._context_tokens = _listed_context(listed, target.model)

    def _check_chat_path(self, rejection: SmallResponse) -> None:
        # Rejecting the empty request as invalid, or with status 500, proves that the path exists.
        failure = response_failure(rejection.status, rejection.body, self._context.mask)
        if rejection.status == 200 and not isinstance(decode_json(rejection.body), dict):
            raise EndpointFailure("configuration", "its response is not a JSON object", status=404)
        if rejection.status not in (200, 500) and failure.reason != "request":
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
        reply = await fetch(self._client, method, url, body, headers)
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
        return f"start the server at {safe_url(spec.url)}, or change its URL in the profile"

    def _configuration_hint(self, failure: EndpointFailure) -> str:
        model = one_line(self._endpoint.spec.model or self._model, 100)
        if failure.is_missing_path and self._target is not None:
            path = one_line(urlsplit(self._target.url).path, 200)
            return f"no chat completions at {path}: correct the endpoint's URL in the profile"
        is_key = failure.status in (401, 403, None) or WRONG_KEY.search(str(failure))
        if is_key and not failure.unknown_model:
            name = self._endpoint.spec.api_key_env or self._endpoint.spec.optional_key_env
            return (
                f"set the variable {name} to a valid key"
                if name
                else "set api_key_env to the name of the variable that holds its key"
            )
        match self._kind:
            case "ollama":
                return f"pull it with: ollama pull {model}"
            case "tensorzero":
                return f"add [models.{model}] to the gateway's configuration, or change agent.model in the profile"
        return "check the endpoint's URL and model in the profile"

    def _health(self, status: Status, cause: str | None = None, hint: str | None = None) -> EndpointHealth:
        endpoint, target = self._endpoint, self._target
        url, sent_model = (endpoint.spec.url, "") if target is None else (target.url, target.model)
        display_url, model = safe_url(url), one_line(sent_model or endpoint.spec.model or self._model)
        differs = target is not None and (url, sent_model) != self._configured()
        note = f"uses {display_url} with model {model}" if differs else None
        return EndpointHealth(
            name=endpoint.spec.name,
            kind=self._kind,
            status=status,
            latency_s=self._latency_s,
            cause=cause,
            hint=hint,
            url=display_url,
            model=model,
            note=note,
            rest_s=self._context.gate.wait_s(endpoint.spec.name) or None,
            limit=endpoint.spec.limit,
            context_tokens=self._context_tokens,
        )

    def _configured(self) -> tuple[str, str]:
        return self._endpoint.spec.url, self._endpoint.spec.model or self._model


def _names(reply: SmallResponse, key: str, field: str) -> set[str]:
    return {as_text(as_dict(entry).get(field)) for entry in as_list(as_dict(decode_json(reply.body)).get(key))}


def _listed_context(reply: SmallResponse, model: str) -> int | None:
    for entry in map(as_dict, as_list(as_dict(decode_json(reply.body)).get("data"))):
        if entry.get("id") == model:
            return next(filter(None, (as_count(entry.get(name)) for name in _CONTEXT_FIELDS)), None)
    return None


def _unknown_model(model: str, problem: str) -> EndpointFailure:
    return EndpointFailure(
        "configuration", f"the model {one_line(model, 100)} {problem}", status=404, unknown_model=True
    )

"""One inference: the endpoints are asked in order until one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runner.errors import InferenceFault
from runner.inference.api_keys import PieceFilter, is_secret, key_of, without_key
from runner.inference.chat_format import Question, Reply, request_body, tokens_per_s
from runner.inference.endpoint_state import Core, LiveEndpoint
from runner.inference.endpoints import Kind, shown_url
from runner.inference.errors import EndpointFailure
from runner.inference.genai_spans import note_reply, note_target, request_span
from runner.inference.http import client_of_loop
from runner.inference.providers import Target, target_of
from runner.inference.request import Call, ask
from runner.inference.retry import ROUNDS, pause_s
from runner.tracing import SpanHandle, Tracer, create_flow_id
from runner.types import Piece
from runner.util.text import one_line

if TYPE_CHECKING:
    import httpx

GRACE_S = 0.25
"""Seconds beyond an episode's end: its own limit ends it first, so that it counts as timed out and not as failed."""


@dataclass(frozen=True)
class Asked:
    """What one inference is about.

    Attributes:
        model: where an endpoint has none of its own.
        id: unique for each inference, for the arrows of the trace.
        on_piece: takes the answer while it comes, who is asked for it, and who gave none.
        gateway_ids: TensorZero's ids of the episode by endpoint, added to.
    """

    question: Question
    model: str
    episode: str
    id: str
    time_left_s: float
    tracer: Tracer
    on_piece: Callable[[Piece], None] | None = None
    gateway_ids: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A reply, and whose it is; ``tokens_per_s`` is None where the endpoint does not count tokens."""

    endpoint: LiveEndpoint
    target: Target
    key: str | None
    reply: Reply
    used_tools: bool
    tokens_per_s: float | None
    flow_id: int


class Chain:
    """Goes through the endpoints; ``warnings`` says what went otherwise than configured.

    An endpoint that fails is passed over for the next one at once. Only when none is left does it wait, for as long as
    the first one to be ready again has asked for, and goes through them once more.
    """

    def __init__(self, core: Core, asked: Asked) -> None:
        """Start with the first endpoint; ``run`` may be awaited once."""
        self._core = core
        self._asked = asked
        self._now = core.timing.clock.monotonic
        self._deadline = self._now() + asked.time_left_s
        self._notes: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._n_requests = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each endpoint's last failure, in the order of the chain."""
        return tuple(f"{name}: {note}" for name, note in self._notes.items())

    async def run(self) -> Answer:
        """The first answer.

        Raises:
            InferenceFault: when none comes, naming each endpoint and what came back from it.
        """
        for round in range(ROUNDS):
            if round and not await self._wait(round):
                break
            for endpoint in self._core.endpoints:
                answer = await self._try(endpoint)
                if answer is not None:
                    return answer
        raise InferenceFault(self._told())

    async def _wait(self, round: int) -> bool:
        """Wait until an endpoint is worth asking again; returns whether there will be one in time."""
        left = [end for end in self._core.endpoints if end.spec.name not in self._given_up]
        if not left:
            return False
        pause = max(pause_s(round, self._core.timing.uniform), min(end.breaker.wait_s() for end in left))
        if pause >= self._deadline - self._now():
            return False
        await self._core.timing.sleep(pause)
        return True

    async def _try(self, endpoint: LiveEndpoint) -> Answer | None:
        name, breaker = endpoint.spec.name, endpoint.breaker
        if name in self._given_up or self._now() >= self._deadline:
            return None
        if not breaker.admit():
            if name not in self._notes:
                self._notes[name] = f"not asked for {breaker.wait_s():.0f} s more, as it failed: {breaker.cause}"
                self._tell(Piece(failure=f"{name}: {self._notes[name]}"))
            return None
        try:
            answer = await self._ask(endpoint)
        except EndpointFailure as failure:
            self._fail(endpoint, failure)
            return None
        except asyncio.CancelledError:
            breaker.released()
            raise
        breaker.succeeded()
        return answer

    def _fail(self, endpoint: LiveEndpoint, failure: EndpointFailure) -> None:
        name, text = endpoint.spec.name, self._core.shown(failure)
        endpoint.doubt(failure)
        self._tell(Piece(failure=f"{name}: {text}", restart=True))
        if failure.reason == "request":
            endpoint.breaker.succeeded()
            raise InferenceFault(
                f"{name} at {shown_url(endpoint.spec.url)} refuses what it was asked: {text}; so would others. "
                "Check agent.model, agent.max_tokens and agent.context_tokens in the profile"
            ) from None
        self._notes[name] = text
        if failure.reason in ("timeout", "configuration"):
            self._given_up.add(name)
        if failure.reason == "timeout" and self._now() >= self._deadline:
            endpoint.breaker.released()  # it was the episode whose time was up
        else:
            endpoint.breaker.failed(failure, text)

    async def _ask(self, endpoint: LiveEndpoint) -> Answer:
        model = endpoint.spec.model or self._asked.model
        use_tools = bool(self._asked.question.tools) and endpoint.takes_tools(model)
        try:
            return await self._request(endpoint, model, use_tools)
        except EndpointFailure as failure:
            if not (use_tools and failure.no_tools):
                raise
            endpoint.refuse_tools(model)
            self._tell(Piece(restart=True))
            self._notes[endpoint.spec.name] = f"asked without tools: {self._core.shown(failure)}"
        return await self._request(endpoint, model, use_tools=False)

    async def _request(self, endpoint: LiveEndpoint, model: str, use_tools: bool) -> Answer:
        asked = self._asked
        self._n_requests += 1
        id = f"{asked.id}:{self._n_requests}"
        self._tell(Piece(endpoint=endpoint.spec.name, model=one_line(model)))
        with (
            asked.tracer.span("inference", "agent", endpoint=endpoint.spec.name) as outer,
            request_span(asked.tracer, endpoint.spec, model, asked.question, asked.episode) as span,
        ):
            outer.start_flow(create_flow_id("inference", id))
            span.end_flow(create_flow_id("inference", id))
            answer = await self._exchange(endpoint, use_tools, span, create_flow_id("inference_response", id))
            note_reply(span, answer.reply, answer.tokens_per_s)
            span.start_flow(answer.flow_id)
        return answer

    async def _exchange(self, endpoint: LiveEndpoint, use_tools: bool, span: SpanHandle, flow_id: int) -> Answer:
        """Find out what the endpoint is, if that is not known, and ask it, all within the time there is."""
        bound_s = min(self._core.settings.timeout_sec, self._deadline - self._now() + GRACE_S)
        try:
            async with asyncio.timeout(bound_s):
                client = await client_of_loop()
                target = target_of(endpoint.spec, await self._kind(endpoint, client), self._asked.model)
                note_target(span, target)
                key = key_of(endpoint.spec, target.kind, self._core.environ)
                gateway_id = self._asked.gateway_ids.get(endpoint.spec.name) if target.kind == "tensorzero" else None
                body = request_body(self._asked.question, target, use_tools=use_tools, episode_id=gateway_id)
                started = self._now()
                reply = await self._send(client, target, body, key)
                rate = tokens_per_s(reply, self._now() - started)
        except TimeoutError:
            raise EndpointFailure("timeout", f"no complete answer within {bound_s:.3g} s") from None
        return Answer(endpoint, target, key, without_key(reply, key), use_tools, rate, flow_id)

    async def _kind(self, endpoint: LiveEndpoint, client: httpx.AsyncClient) -> Kind:
        return await endpoint.find_kind(client, self._core.mask, self._core.timing.clock.now())

    async def _send(self, client: httpx.AsyncClient, target: Target, body: bytes, key: str | None) -> Reply:
        on_piece, core = self._asked.on_piece, self._core
        unkeyed = PieceFilter(key, on_piece) if on_piece is not None and is_secret(key) else None
        tell = on_piece if unkeyed is None else unkeyed.add
        call = Call(target=target, body=body, key=key, mask=core.mask, on_piece=tell, clock=core.timing.clock)
        reply = await ask(client, call)
        if unkeyed is not None:
            unkeyed.flush()
        return reply

    def _tell(self, piece: Piece) -> None:
        if self._asked.on_piece is not None:
            self._asked.on_piece(piece)

    def _told(self) -> str:
        if not self._core.endpoints:
            return "the profile names no model to ask; set agent.api_endpoint or agent.local_fallback"
        told = [
            f"{info.name} ({info.url}, model {info.model}): {self._notes.get(info.name, 'no time was left to ask')}"
            for info in (endpoint.info(self._asked.model) for endpoint in self._core.endpoints)
        ]
        return f"no model answered; {'; '.join(told)}. agentgym-runner preflight says what to do about each"

"""The endpoint's routes: chat completions, lists of models in OpenAI's and Ollama's form, health."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner import __version__
from runner.errors import ConfigError
from runner.serve.guard import guarded
from runner.serve.mock_llm.chat_format import ChatRequest
from runner.serve.mock_llm.delivery import Delivery
from runner.serve.mock_llm.faults import Behaviour, Fault, Faults, check_kind, status_of
from runner.serve.mock_llm.oracle import PREFIX, OraclePlayer, named
from runner.serve.mock_llm.players import EchoPlayer, Player
from runner.serve.mock_llm.reply import NAME, Reply
from runner.serve.mock_llm.response import Answers
from runner.util.text import one_line

HEADER = "x-agentgym-test-model"
"""On every reply, also on errors: says that no language model wrote it."""
FAULT_HEADER = "x-agentgym-test-fault"
MAX_BODY = 8 << 20
N_RECEIVED = 1000
"""How many requests are remembered, for tests."""


class Received(msgspec.Struct, frozen=True):
    """A request for a completion as it came in; ``headers`` with names in lower case."""

    headers: Mapping[str, str]
    body: bytes


class ModelApp:
    """Answers as an OpenAI-compatible endpoint, every reply of it marked as none of a language model.

    Args:
        player: writes the replies; by default the oracle.
        behaviour: delays and faults.
        models: further names that the player answers to, beside ``test-<player>`` and ``agentgym-test-model``.
        remember: keep the newest requests in ``received``.
    """

    def __init__(
        self,
        player: Player | None = None,
        *,
        behaviour: Behaviour | None = None,
        models: Iterable[str] = (),
        remember: bool = False,
    ) -> None:
        oracle = OraclePlayer()
        player = player or oracle
        players = {f"test-{known.name}": known for known in (oracle, EchoPlayer(), player)}
        self._oracle = oracle
        self._players: dict[str, Player] = {**players, **dict.fromkeys([NAME, *models], player)}
        self._behaviour = behaviour or Behaviour()
        self._answers = Answers(self._behaviour)
        self._faults = Faults(self._behaviour.faults, self._behaviour.seed)
        self.received: deque[Received] = deque(maxlen=N_RECEIVED if remember else 0)

    def site(self, *, token: str | None = None, allowed_hosts: Collection[str] = ()) -> ASGIApp:
        """The application to be served: behind its guard, with the header that names it on every reply.

        It belongs to one event loop at a time; what was served before is closed by then.
        """
        self._answers = Answers(self._behaviour)
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._list_models),
            Route("/api/tags", self._list_tags),
            Route("/health", self._tell_health),
        ]
        app = guarded(Starlette(routes=routes), token=token, max_body=MAX_BODY, allowed_hosts=allowed_hosts)
        return _marked(app)

    def inject(self, *faults: Fault) -> None:
        """From now on these faults, and no others."""
        self._faults = Faults(faults, self._behaviour.seed)

    def close(self) -> None:
        """End what still waits; to be called in the event loop that serves."""
        self._answers.closing.set()

    async def _complete(self, request: Request) -> Delivery:
        body = await request.body()
        self.received.append(Received(dict(request.headers), body))
        try:
            asked = msgspec.json.decode(body, type=ChatRequest)
            fault = request.headers.get(FAULT_HEADER) or asked.agentgym_test_fault
            if fault is not None:
                check_kind(fault)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as exc:
            return self._answers.error(400, f"This is no chat completion request: {one_line(str(exc))}")
        try:
            player = self._player(asked.model)
        except ConfigError as exc:
            return self._answers.error(404, str(exc), code="model_not_found")
        fault = fault or self._faults.next()
        unasked = fault is not None and status_of(fault) is not None  # so that an error takes no reply of a script
        reply = Reply() if unasked else await player.play(asked)
        return self._answers.answer(asked, reply, player.name, fault)

    def _player(self, model: str) -> Player:
        if model.startswith(PREFIX):
            named(model)
            return self._oracle
        player = self._players.get(model)
        if player is None:
            known = ", ".join(self._players)
            raise ConfigError(f"The model {one_line(model)!r} does not exist on this {NAME}; there are {known}")
        return player

    async def _list_models(self, request: Request) -> Delivery:
        models = [{"id": name, "object": "model", "created": 0, "owned_by": NAME} for name in self._players]
        return self._answers.document({"object": "list", "data": models})

    async def _list_tags(self, request: Request) -> Delivery:
        details = {
            "parent_model": "",
            "format": "none",
            "family": NAME,
            "families": [NAME],
            "parameter_size": "0",
            "quantization_level": "none",
        }
        about = {"modified_at": "1970-01-01T00:00:00Z", "size": 0, "digest": "", "details": details}
        return self._answers.document({"models": [{"name": name, "model": name, **about} for name in self._players]})

    async def _tell_health(self, request: Request) -> Delivery:
        return self._answers.document({"status": "ok", "server": NAME, "version": __version__})


def _marked(app: ASGIApp) -> ASGIApp:
    """``app`` with the header that says what it is."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER.encode(), b"not a language model")]
            await send(message)

        await app(scope, receive, send_marked)

    return marked

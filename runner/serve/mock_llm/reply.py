"""What is answered to one request, and scripts of such replies."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from runner.errors import ConfigError
from runner.serve.mock_llm.chat_format import ChatRequest
from runner.serve.mock_llm.faults import check_fault_kind
from runner.util.text import one_line

TEST_MODEL_NAME = "agentgym-test-model"
"""What this endpoint calls itself wherever a model's name is shown."""
MAX_SCRIPT = 16 << 20

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,998}[\x21-\x7e])?")
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding", "upgrade"})


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool; ``arguments`` as text is sent as it is, so it can be malformed."""

    name: str
    arguments: str | dict[str, Any] = {}
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        """The arguments as they are sent."""
        return self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reply; without ``status`` and ``body`` a completion, streamed where that was asked for.

    Attributes:
        delay_s: seconds before the reply begins, beside the endpoint's own latency.
        status: 400 and above without a ``body`` gives an error of OpenAI's form that says ``content``.
        headers: sent with it; with a ``body`` also its content type.
        body: sent as it is in place of a completion, whatever it holds.
        fault: what goes wrong with it, see :mod:`runner.serve.mock_llm.faults`.
    """

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    delay_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    status: Annotated[int, Meta(ge=200, le=599)] = 200
    headers: dict[str, str] = {}
    body: str | None = None
    fault: str | None = None

    def check(self) -> None:
        """Refuse what could not be sent.

        Raises:
            ConfigError: saying why.
        """
        for name, value in self.headers.items():
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)) or name.lower() in _FRAMING:
                raise ConfigError(f"the header {one_line(name)!r} cannot be set")
        if self.fault is not None:
            check_fault_kind(self.fault)

    @property
    def text(self) -> str:
        """All that a model would have had to write."""
        calls = "".join(call.name + call.arguments_text for call in self.tool_calls)
        return (self.reasoning_content or "") + (self.content or "") + calls


def read_script(path: Path) -> list[ScriptedReply]:
    """The replies of a file: a line that starts with ``{`` is a :class:`Reply` as JSON, any other the content of one.

    Raises:
        ConfigError: naming the line that is neither.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_SCRIPT + 1)
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"The script {path} cannot be read ({exc}); give a UTF-8 file with one reply per line"
        ) from exc
    if len(content) > MAX_SCRIPT:
        raise ConfigError(f"The script {path} is larger than {MAX_SCRIPT >> 20} MiB")
    replies = [_read(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not replies:
        raise ConfigError(f"The script {path} has no replies")
    return replies


def _read(line: str, where: str) -> ScriptedReply:
    if not line.lstrip().startswith("{"):
        return ScriptedReply(content=line.strip())
    try:
        reply = msgspec.json.decode(line, type=ScriptedReply)
        reply.check()
    except (msgspec.MsgspecError, RecursionError, ConfigError) as exc:
        raise ConfigError(f"{where} is no reply: {one_line(str(exc))}") from exc
    return reply


class Responder(Protocol):
    """Answers requests; ``name`` is part of the model's name."""

    @property
    def name(self) -> str:
        """A word for how the replies come about."""

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        """The reply to a request."""


class ScriptResponder:
    """Gives the replies of a script one after the other, whoever asks, and then begins again."""

    name = "script"

    def __init__(self, replies: Sequence[ScriptedReply | str]) -> None:
        """Start with the first; a text is the content of a reply."""
        read = [ScriptedReply(content=reply) if isinstance(reply, str) else reply for reply in replies]
        for reply in read:
            reply.check()
        self._replies = itertools.cycle(read)

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        """The next reply."""
        return next(self._replies)


class EchoResponder:
    """Says what was said last."""

    name = "echo"

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        """The content of the last message."""
        return ScriptedReply(content=request.messages[-1].text)

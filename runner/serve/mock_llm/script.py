"""What the test endpoint is to reply: the language of scripts, delays, and faults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from runner.errors import ConfigError
from runner.util.display_text import one_line

MAX_SCRIPT_BYTES = 16 << 20
FAULT_KINDS = {
    "drop": "close the connection after the headers",
    "drip": "send the reply byte by byte",
    "empty-choices": "send a completion without choices",
    "hang": "send nothing until the client disconnects",
    "huge": "send 10 MB of text",
    "invalid-json": "send malformed JSON",
    "truncated": "close the connection after half of the reply",
    "wrong-type": "send a web page",
}
"""Kinds of faults and their meaning. A status from 400 to 599 is also a kind; 429 and 503 have ``Retry-After``."""

_STATUS = re.compile(r"[45][0-9]{2}")
_SPEC = re.compile(r"(?P<kind>[a-z0-9-]+?)(?::(?P<share>[0-9]*\.?[0-9]+))?(?:x(?P<times>[1-9][0-9]{0,6}))?")
_HEADER_NAME = re.compile(
    r"(?!(?:connection|content-length|transfer-encoding|upgrade)$)[a-z0-9!#$%&'*+.^_`|~-]{1,100}", re.IGNORECASE
)
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,998}[\x21-\x7e])?")


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of a reply; ``arguments`` are sent verbatim if they are a text, which may be malformed JSON."""

    name: str
    arguments: str | dict[str, Any] = {}
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reply: a chat completion (streamed if requested), or an error or a body if ``status`` or ``body`` is set.

    Attributes:
        finish_reason: None: ``tool_calls`` if there are tool calls, else ``stop``.
        delay_s: seconds before the reply, in addition to the endpoint's ``latency_s``.
        status: HTTP status; from 400 and without a ``body``, the reply is an error in OpenAI's form with the message
            ``content``.
        headers: additional response headers; they must include the content type of a ``body``.
        body: text to send verbatim instead of a completion.
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

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
                raise ConfigError(f"the header {one_line(name)!r} cannot be set")
        if self.fault is not None:
            check_fault_kind(self.fault)

    @property
    def finish(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")

    @property
    def text(self) -> str:
        calls = "".join(call.name + call.arguments_text for call in self.tool_calls)
        return (self.reasoning_content or "") + (self.content or "") + calls


_reply_decoder = msgspec.json.Decoder(ScriptedReply)


def read_script(path: Path) -> list[ScriptedReply]:
    """Read the replies in a script file, one per line; ``ConfigError`` names an invalid line by its number.

    A line that starts with ``{`` is a ``ScriptedReply`` as JSON; any other line is the content of a reply.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_SCRIPT_BYTES + 1)
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"The script {path} cannot be read ({exc}); give a UTF-8 file with one reply per line"
        ) from exc
    if len(content) > MAX_SCRIPT_BYTES:
        raise ConfigError(f"The script {path} is larger than {MAX_SCRIPT_BYTES >> 20} MiB")
    replies = [_read(line.strip(), f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not replies:
        raise ConfigError(f"The script {path} has no replies")
    return replies


def _read(line: str, location: str) -> ScriptedReply:
    try:
        return _reply_decoder.decode(line) if line.startswith("{") else ScriptedReply(content=line)
    except (msgspec.MsgspecError, RecursionError, ConfigError) as exc:
        raise ConfigError(f"{location} is not a valid reply: {one_line(str(exc))}") from exc


class Fault(msgspec.Struct, frozen=True):
    """A kind of fault, the share of requests that it affects (0 to 1), and the maximum number of them (None: all)."""

    kind: str
    share: float = 1.0
    times: int | None = None

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Parse a fault of the command line: ``KIND``, ``KIND:SHARE``, ``KINDxTIMES`` or ``KIND:SHARExTIMES``."""
        match = _SPEC.fullmatch(spec)
        share = float(match["share"] or 1) if match else 2.0
        if match is None or share > 1:
            raise ConfigError(
                f"{one_line(spec)!r} is not a valid fault; examples: 429:0.1 (a share), 500x2 (the first two), hang"
            )
        check_fault_kind(match["kind"])
        return cls(match["kind"], share, int(match["times"]) if match["times"] else None)


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """Delays and faults of the test endpoint.

    Attributes:
        token_latency_s: seconds between the tokens of a streamed reply.
        seed: random seed for the choice of the affected requests.
        retry_after_s: seconds in the ``Retry-After`` header of errors with status 429 or 503.
        drip_s: seconds between two bytes of a reply with the fault ``drip``.
    """

    latency_s: float = 0.0
    token_latency_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    retry_after_s: float = 1.0
    drip_s: float = 1.0


def fault_status(kind: str | None) -> int | None:
    return int(kind) if kind and _STATUS.fullmatch(kind) else None


def check_fault_kind(kind: str) -> None:
    """The message of the ``ConfigError`` lists the known kinds."""
    if kind not in FAULT_KINDS and fault_status(kind) is None:
        raise ConfigError(
            f"{one_line(kind)!r} is not a kind of fault; valid: a status from 400 to 599, {', '.join(FAULT_KINDS)}"
        )

"""Frames between this process and ARE's process; ``runner.envs.are.engine.episode_server`` is the other side.

A frame (``runner.util.framing``) is a JSON object of at most ``MAX_FRAME_BYTES``. The control socket carries ``Ready``
or ``Failed`` after the start, and then belongs to ``runner.util.fork_server``. An episode's socket carries requests
(``Reset``, then ``Call`` and ``Evaluate``), each answered by ``Stepped``, ``Evaluated`` or ``Failed``. Before that, the
model of a judge may be needed: each ``Ask`` is answered by ``Answer``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from runner.envs.are.tools import MAX_FRAME_BYTES
from runner.errors import EnvironmentFault, EvaluationFault
from runner.util.framing import FrameTooLarge, framed

Kind: TypeAlias = Literal["result", "error", "user", "notification", "environment"]
"""Kind of a message; see ``runner.envs.are.environment``."""


class ToolRequest(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any] = {}


class Reset(msgspec.Struct, frozen=True, tag_field="type", tag="reset"):
    """Start a scenario; the first request of an episode."""

    scenario: str


class Call(msgspec.Struct, frozen=True, tag_field="type", tag="call"):
    """Call a tool, and let simulated time pass."""

    name: str
    arguments: dict[str, Any]


class Evaluate(msgspec.Struct, frozen=True, tag_field="type", tag="evaluate"):
    pass


class Ask(msgspec.Struct, frozen=True, tag_field="type", tag="ask"):
    """A chat that the judge's model has to answer; each message has a role and a text."""

    messages: list[dict[str, str]]


class Answer(msgspec.Struct, frozen=True, tag_field="type", tag="answer"):
    """The answer of the judge's model; ``text`` is None if there is none, for the reason in ``problem``."""

    text: str | None = None
    problem: str = ""


class Ready(msgspec.Struct, frozen=True, tag_field="type", tag="ready"):
    """ARE is loaded: its version and the ids of its scenarios."""

    version: str
    scenarios: list[str]
    pid: int


class Stepped(msgspec.Struct, frozen=True, tag_field="type", tag="stepped"):
    """The messages after a reset or a call.

    Attributes:
        parts: kind and text of each message.
        oracle: the oracle's next action; None at the end, and if an oracle event calls no tool.
        tools: OpenAI function schemas, after a reset only.
    """

    parts: list[tuple[Kind, str]]
    done: bool
    reward: float
    oracle: ToolRequest | None = None
    tools: list[dict[str, Any]] | None = None


class Evaluated(msgspec.Struct, frozen=True, tag_field="type", tag="evaluated"):
    details: dict[str, Any]


class Failed(msgspec.Struct, frozen=True, tag_field="type", tag="failed"):
    """A request failed; the process may be unusable.

    Attributes:
        kind: ``import`` (ARE cannot be loaded), ``unknown_scenario``, ``scenario`` (it raised an exception), ``judge``
            (its model gave no verdict), ``memory`` (the limit was reached), ``too_large`` (the reply is larger than a
            frame), or ``protocol`` (a request before ``Reset``).
    """

    kind: str
    message: str


Request: TypeAlias = Reset | Call | Evaluate | Answer
Reply: TypeAlias = Ready | Stepped | Evaluated | Ask | Failed
_ReplyT = TypeVar("_ReplyT", Ready, Stepped, Evaluated)

_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def encode_request(request: Request) -> bytes:
    """Return the frame of a request; raises ``EnvironmentFault`` if it is too large, as an agent's call may be."""
    try:
        return framed(msgspec.json.encode(request), MAX_FRAME_BYTES)
    except FrameTooLarge as exc:
        raise EnvironmentFault(f"the request {type(request).__name__.lower()} to ARE's process is {exc}") from exc


def decode_frame(data: bytes) -> Reply:
    """Raises ``EnvironmentFault`` for anything but a known reply."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise EnvironmentFault(f"ARE's process sent a frame that cannot be read: {exc}") from exc


def check_reply(reply: Reply, expected: type[_ReplyT]) -> _ReplyT:
    """Raises ``EvaluationFault`` if the model of a judge failed, and ``EnvironmentFault`` for any other reply."""
    if isinstance(reply, expected):
        return reply
    if isinstance(reply, Failed) and reply.kind == "judge":
        raise EvaluationFault(reply.message)
    if isinstance(reply, Failed):
        raise EnvironmentFault(f"ARE's process failed ({reply.kind}): {reply.message}")
    raise EnvironmentFault(f"ARE's process sent {type(reply).__name__} instead of {expected.__name__}")

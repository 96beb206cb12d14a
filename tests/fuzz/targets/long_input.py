"""Long inputs made of a repeated part: every decoder takes time in proportion to the length, within its own limits.

The input is a byte that chooses the decoder, a byte that chooses where the repeated part ends, and the text. The limit
on the time of one input, set by the fuzzer, finds a decoder whose time grows faster.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from agentgym_tui.logs import parse_record
from agentgym_tui.presenters.cells import cut_middle, cut_start, wrap_text
from agentgym_tui.safe_text import sanitize_line, sanitize_lines, unsafe_excerpt
from agentgym_tui.state.event_log import parse_patterns, parse_start
from runner.agents.model.reply_parsing import parse_reply
from runner.bus.address import BusAddress
from runner.bus.request_server import is_inbox
from runner.config.document import expand, parse_yaml
from runner.envs.http.server import ServerAddress, identify_server
from runner.errors import ConfigError
from runner.events.codec import check_depth, decode
from runner.events.subjects import DurableNames
from runner.inference.chat_format import split_thinking
from runner.inference.errors import EndpointFailure, response_failure
from runner.inference.sse import EventParser, StreamAccumulator
from runner.util.display_text import mask, one_line, sanitize
from tests.fuzz.oracles import outcome
from tests.fuzz.targets.chat_reply import STYLES, TOOLS

TOKENS = (b"<think>", b"://", b"@", b"Action:", b"```", b"```sql", b"{", b"[", b'"', b"\\", b"${A:-", b"&a *a ")
MAX_LEN = 64
LENGTH: Final = 60_000
"""Bytes of the long input: a decoder with quadratic time takes minutes for it."""

NOW = datetime(2026, 3, 4, tzinfo=UTC)


def check(data: bytes) -> None:
    if len(data) < 3:
        return
    text = data[2:]
    stop = data[1] % len(text) + 1
    start = (data[1] // 16) % stop
    part = text[start:stop]
    long = text[:start] + part * (LENGTH // len(part)) + text[stop:]
    DECODERS[data[0] % len(DECODERS)](long, long.decode("utf-8", "replace"))


def _display(data: bytes, text: str) -> None:
    for limit in (200, 100_000):
        assert len(sanitize(text, limit=limit)) <= limit and len(one_line(text, limit)) <= limit
    sanitize_lines(text)
    unsafe_excerpt(text)


def _mask(data: bytes, text: str) -> None:
    mask(text, {"TOKEN": "s3cr3t"})


def _layout(data: bytes, text: str) -> None:
    shown = sanitize_line(text, 2_000)
    for width in (1, 20, 200):
        assert wrap_text(shown, width, 100)
        cut_start(shown, width)
        cut_middle(shown, width)


def _reply(data: bytes, text: str) -> None:
    split_thinking(text)
    for style in STYLES:
        parse_reply({"role": "assistant", "content": text}, style, TOOLS, as_calls=True)


def _stream(data: bytes, text: str) -> None:
    accumulator, parser = StreamAccumulator(lambda: 1.0), EventParser()

    def read() -> None:
        for start in range(0, len(data), 1000):
            for event in parser.feed(data[start : start + 1000]):
                accumulator.add(event)
        accumulator.result()

    outcome(read, EndpointFailure)


def _error(data: bytes, text: str) -> None:
    response_failure(500, data, lambda each: mask(each, {}))


def _message(data: bytes, text: str) -> None:
    for subject in ("agentgym.live.token.v1.n", "agentgym.episode.completed.v1", text):
        decode(subject, {"ce-id": text}, data, DurableNames())
    outcome(lambda: check_depth(data), ValueError)


def _profile(data: bytes, text: str) -> None:
    outcome(lambda: parse_yaml(text), ConfigError)
    outcome(lambda: expand(text, {"A": "b"}), ConfigError)


def _addresses(data: bytes, text: str) -> None:
    outcome(BusAddress(text).with_split_login, ConfigError)
    outcome(lambda: ServerAddress(text).base, ConfigError)
    identify_server("Maze", text[:500])


def _queries(data: bytes, text: str) -> None:
    parse_patterns(text)
    parse_start(text, NOW)
    is_inbox(text)
    parse_record(data)


DECODERS: Final[tuple[Callable[[bytes, str], None], ...]] = (
    _display,
    _mask,
    _layout,
    _reply,
    _stream,
    _error,
    _message,
    _profile,
    _addresses,
    _queries,
)

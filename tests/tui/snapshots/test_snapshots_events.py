"""The bus and log files."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from runner.events.codec import encode
from runner.events.live import LiveBatch, LiveItem
from runner.events.subjects import BATCH_COMPLETED, EPISODE_COMPLETED, LIVE_STREAM
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import FakeSession, busy_session
from tests.support.console.hostile_console import hostile_messages
from tests.support.console.log_consoles import log_line, logs_app
from tests.support.console.pilot import SIZE, SMALL, console_app
from tests.support.console.samples import (
    BOOT,
    HOSTILE,
    NODE,
    START,
    batch_completed,
    completed,
    started,
    timestep,
    token,
)
from tests.support.console.snapshots import LARGE, PicturesOf


def message_at(second: float, subject: str, payload: bytes, **headers: str) -> RawMessage:
    at = START + timedelta(seconds=second)
    return RawMessage(subject, headers, payload, LIVE_STREAM, round(second * 10), at)


def live_message(second: float, channel: str, *items: LiveItem) -> RawMessage:
    batch = LiveBatch(node=NODE, boot=BOOT, dropped=0, items=list(items))
    return message_at(second, f"agentgym.live.{channel}.v1.{NODE}", encode(batch))


def busy_bus() -> FakeSession:
    """Return a session whose bus carries an episode, foreign subjects and one malformed message."""
    session = busy_session()
    source = {"ce-source": NODE, "ce-time": (START + timedelta(seconds=42)).isoformat()}
    session.fake_events.initial = [
        live_message(1, "episode", started(3)),
        *(live_message(2 + n, "token", token(3), token(3)) for n in range(20)),
        *(
            message_at(22 + n, f"orders.{('eu', 'us')[n % 2]}.new", b'{"order": %d, "shop": "s%d"}' % (n, n))
            for n in range(9)
        ),
        live_message(32, "timestep", timestep(3)),
        message_at(33, "agentgym.live.span.v1.n7", b"nonsense"),
        message_at(40, EPISODE_COMPLETED, encode(completed(3)), **source),
        message_at(41, BATCH_COMPLETED, encode(batch_completed()), **source),
    ]
    session.store.n_malformed = 1
    return session


def hostile_bus() -> FakeSession:
    session = busy_session()
    messages = [item for item in hostile_messages(HOSTILE) if isinstance(item, RawMessage)]
    for message in messages:
        message.time = START  # not the time of the test
    streams = list(dict.fromkeys(message.stream for message in messages))
    messages.sort(key=lambda message: streams.index(message.stream))  # as a subscription orders equal times
    session.fake_events.initial = list(messages)
    return session


async def test_messages_of_a_busy_bus(pictures_of: PicturesOf) -> None:
    texts = ('"n_episodes": 10',)
    async with pictures_of(console_app(busy_bus())) as pictures:
        await pictures.compare("messages", "3", texts=texts, sizes=(SMALL, LARGE))
    async with pictures_of(console_app(busy_bus()), SIZE) as pictures:
        await pictures.show("3", texts=texts)
        sort_and_widen = ("plus", "t", "o", "greater_than_sign", "greater_than_sign")
        await pictures.compare("sorted", *sort_and_widen, texts=texts, sizes=(SIZE,))
    async with pictures_of(console_app(busy_bus()), SIZE) as pictures:
        await pictures.show("3", texts=texts)
        await pictures.compare("headers", "k", "v", "v", "v", "space", "t", sizes=(SIZE, SMALL))


async def test_hex_view_of_hostile_messages(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(hostile_bus())) as pictures:
        await pictures.show("3", texts=("⚠",))
        await pictures.compare("hex", "v", "v", sizes=(SMALL, SIZE))


async def test_bus_without_messages(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(busy_session())) as pictures:
        await pictures.compare("messages", "3", "J", texts=("No messages yet",))


def log_data() -> bytes:
    kinds = ("episode.started", "timestep", "token", "token", "span", "token")
    json_lines = [
        log_line(n, kinds[n % 6], episode_id=f"01KA{n // 50:022}", text="word " * (n % 17)) for n in range(400)
    ]
    return "".join(json_lines).encode() + b"2026-03-04 05:20:00,123 ERROR runner.node the broker is gone\n{}\n"


def written(name: str, data: bytes) -> Path:
    Path(name).write_bytes(data)
    return Path(name)


@pytest.fixture
def in_tmp_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Open logs by relative names, so that the screen shows no temporary folder."""
    monkeypatch.chdir(tmp_path)


async def test_lines_of_a_log(pictures_of: PicturesOf, in_tmp_path: None) -> None:
    log = written("events.jsonl", log_data())
    async with pictures_of(logs_app(log, Path("other.log"))) as pictures:
        await pictures.show(texts=("402 lines",))
        await pictures.compare("end", "G", "k", "k")
    async with pictures_of(logs_app(log)) as pictures:
        await pictures.show(texts=("402 lines",))
        await pictures.show("slash", *"timestep", "enter", texts=("67 match",))
        await pictures.compare("filtered", "j", "v", "J")


async def test_hostile_lines_of_a_log(pictures_of: PicturesOf, in_tmp_path: None) -> None:
    text = HOSTILE.replace("\n", " ").encode("utf-8", "replace")
    lines = [text, b"x" * 3_000_000, b"", b'{"kind": "' + text + b'"}', b"\xff\x9b"]
    async with pictures_of(logs_app(written("hostile.log", b"\n".join(lines)))) as pictures:
        await pictures.show(texts=("5 lines",))
        await pictures.compare("lines", "v", "v", sizes=(SMALL, SIZE))


async def test_a_log_that_cannot_be_read(pictures_of: PicturesOf, in_tmp_path: None) -> None:
    async with pictures_of(logs_app(Path("none.jsonl"))) as pictures:
        await pictures.compare("log", texts=("cannot be read",))

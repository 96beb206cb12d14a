"""Hostile text in every field on every screen: none of its control characters reaches a real terminal."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from agentgym_tui.config import UiState, write_ui_state
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.query import Sorting
from runner.bus.streams import ensure_streams
from runner.events import subjects
from runner.events.live import LiveItem
from runner.store import EpisodeStore, open_index
from tests.support.command import REPOSITORY
from tests.support.console.hostile_console import TRAPS
from tests.support.console.launch import CONSOLE
from tests.support.console.samples import (
    ESCAPES,
    HOSTILE,
    HUGE,
    batch_completed,
    completed,
    ended,
    env_health,
    field_status,
    hostile_episode,
    model_health,
    progress,
    started,
    timestep,
    token,
)
from tests.support.console.terminal_walk import check_output, terminate_and_check, walk
from tests.support.episodes import RecordedEpisode, as_json
from tests.support.escapes import CLIPBOARD, foreign_escapes
from tests.support.nats_server import NatsAccount
from tests.support.publishing import nats_client
from tests.support.terminal import BACKSPACE, CTRL_P, ENTER, ESCAPE, TAB, Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

WALKS = [("0", (80, 24)), ("huge", (120, 40))]
if os.environ.get("AGENTGYM_FAULTS") == "full":
    WALKS += [("9", (200, 50)), ("5 read-only", (120, 40))]
SYNC_OUTPUT_REPORT = "\x1b[?2026;2$y"
"""The reply of a terminal that supports synchronized output."""

LIVE_KEYS = ["1", TAB, "j", TAB, "j", "k", "X", TAB, "j", "X", "z", "z", TAB, "z", "z", "\x0e"]
RUN_KEYS = ["r", "x", " ", "s", ".", "]", "[", "?", "j", ESCAPE, "b", ENTER, ESCAPE, CTRL_P, "run", ESCAPE]
READ_ONLY_KEYS = ["r", "x", " ", "s", ".", "Rb", "?", "j", ESCAPE, CTRL_P, "run", ESCAPE]
"""The same for a read-only session, where no dialog opens."""

EPISODE_KEYS = ["j", "X", TAB, "G", "X", "w", "X", "d", "G", "X", "t", "n", "n", "p", "e"]
SHORT_EPISODE_KEYS = [key for key in EPISODE_KEYS if key not in ("X", "e")]
"""Without hex dumps, which take longest, and the export, whose toast covers the names of the views."""

EVENT_KEYS = [*"3kvXkvkvk", TAB, "G", "t", "h", "j", ENTER, "t", " ", " ", "B", ESCAPE, "z"]
"""The messages of a bus, the views of some, the subject tree, an episode."""

LAST_ROW, SECOND_ROW = "G", "gj"
"""Keys that select an unreadable file and a readable episode."""


def hostile_console(text: str, cwd: Path, *size: int, **env: str) -> Terminal:
    """Return a console on a hostile session; ``text`` holds the arguments of ``hostile_console``."""
    columns, rows = size
    command = [sys.executable, "-m", "tests.support.console.hostile_console", *text.split()]
    return Terminal(
        *command, columns=columns, rows=rows, cwd=cwd, env=terminal_environ(PYTHONPATH=str(REPOSITORY), **env)
    )


def pasted(text: str) -> str:
    """Return a bracketed paste of a text; terminals remove escape characters only."""
    plain = text.replace("\x1b", "").encode("utf-8", "replace").decode()
    return f"\x1b[200~{plain}\x1b[201~"


def walk_episodes(terminal: Terminal, walks: Mapping[str, Sequence[str]]) -> None:
    """Filter the list of episodes, then open episodes: ``walks`` maps the keys of a row to keys for its episode."""
    walk(terminal, "2", "j", "j", "k", "/")
    terminal.wait_for("words and fields")
    walk(terminal, "zwj")
    terminal.wait_for("match zwj")
    walk(terminal, ESCAPE)
    terminal.wait_until_absent("match zwj")
    for row, keys in walks.items():
        terminal.wait_for("✗ unreadable")  # in the last row
        walk(terminal, row, ENTER)
        terminal.wait_for("● Transcript")
        walk(terminal, *keys, ESCAPE)
        terminal.wait_until_absent("● Transcript")


@pytest.mark.parametrize(("text", "size"), WALKS)
def test_no_screen_writes_foreign_escapes(tmp_path: Path, text: str, size: tuple[int, int]) -> None:
    with hostile_console(text, tmp_path, *size) as terminal:
        terminal.wait_for("Live", 60)
        terminal.send(SYNC_OUTPUT_REPORT)
        walk(terminal, *LIVE_KEYS, *(READ_ONLY_KEYS if "read-only" in text else RUN_KEYS), "\x0e")
        walk_episodes(terminal, {LAST_ROW: SHORT_EPISODE_KEYS, SECOND_ROW: EPISODE_KEYS})
        walk(terminal, *EVENT_KEYS)
        terminate_and_check(terminal)
    for expected in ("␛", "⚠", "bytes of UTF-8"):
        assert expected.encode() in terminal.raw, expected


def test_pasted_hostile_text_is_made_safe_in_text_fields(tmp_path: Path) -> None:
    with hostile_console("0", tmp_path, 120, 40) as terminal:
        terminal.wait_for("Live", 60)
        walk(terminal, "R")
        for _ in range(12):
            walk(terminal, pasted(HOSTILE), TAB)
        walk(
            terminal,
            ENTER,
            ESCAPE,
            ESCAPE,
            "2",
            "/",
            pasted(HOSTILE),
            BACKSPACE,
            ENTER,
            "\x10",
            pasted(HOSTILE),
            ESCAPE,
        )
        terminate_and_check(terminal, bells=True)


def test_only_copies_reach_the_clipboard_and_only_raw_ones_are_unsafe(tmp_path: Path) -> None:
    with hostile_console("0", tmp_path, 120, 40) as terminal:
        terminal.wait_for("Live", 60)
        walk(terminal, "2")
        terminal.wait_for("✗ unreadable")
        walk(terminal, SECOND_ROW, ENTER)
        terminal.wait_for("✎ tags of the step")
        walk(terminal, "y")
        terminal.wait_for(lambda: CLIPBOARD.search(terminal.raw) is not None)
        walk(terminal, "Y")
        terminal.wait_for(lambda: len(CLIPBOARD.findall(terminal.raw)) == 2)
        terminal.wait_until_quiet()
        terminal.kill(signal.SIGTERM)
    check_output(CLIPBOARD.sub(b"", terminal.raw))
    safe, raw = (base64.b64decode(copied) for copied in CLIPBOARD.findall(terminal.raw))
    assert foreign_escapes(safe.replace(b"\t", b"")) == []
    assert foreign_escapes(raw) != []
    assert max(len(safe), len(raw)) <= 100 * 1024


HOSTILE_YAML = r"""
theme: "\e[31m\x9b2J"
keymap: {"\e]0;x\a": q, run.selected: "\u202e", run.cancel: "\e[2J", run.step: ["\0", "\x9b"]}
notify: {"\e]52;c;cHdu\a": 1}
"\u200b[@click=app.quit]x[/]": 5
"""


def test_hostile_settings_and_ui_state_and_a_screenshot_of_them(tmp_path: Path) -> None:
    home = tmp_path / "agentgym-console"
    home.mkdir()
    (home / "console.yaml").write_text(HOSTILE_YAML)
    text = HOSTILE.encode("utf-8", "replace").decode()[:150]
    ui_state = UiState(
        "events",
        {"episodes": text, "events": "\x1b", "events.subjects": text.replace(" ", "")},
        {"subjects": Sorting("\x1b[2J", True), "episodes": Sorting("\u202e")},
        {"\x1b]0;x\x07": 40, "events.wide.tree": 50},
    )
    write_ui_state(home / "console.json", ui_state)
    folders = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with hostile_console("0 settings", tmp_path, 120, 40, **folders) as terminal:
        terminal.wait_for("console.yaml, ignored settings", 60)
        walk(terminal, "3")
        terminal.wait_for("matches")
        terminal.send(SYNC_OUTPUT_REPORT)
        walk(terminal, ESCAPE, ESCAPE)
        terminal.wait_for("foreign")
        walk(terminal, "t", "o", "o", "O", "<", ">", "-", "+", "t", "-", "=", "J", pasted(HOSTILE))
        walk(terminal, ENTER)
        terminal.wait_for("is not a sequence or a time")
        walk(terminal, ESCAPE, "u", pasted(f"a..b {HOSTILE}"), ENTER)
        terminal.wait_for("is not a valid subject pattern")
        walk(terminal, ESCAPE, CTRL_P, "app.screenshot", ENTER)
        terminal.wait_for("screenshot written to")
        terminate_and_check(terminal, bells=True)
    [screenshot] = tmp_path.glob("*.svg")
    assert screenshot.name.isascii() and "␛" in screenshot.read_text()
    assert not has_unsafe_chars(screenshot.read_text().replace("\xa0", " "))


async def test_hostile_messages_of_a_bus(bus: NatsAccount, tmp_path: Path) -> None:
    await publish_hostile(bus, HOSTILE)
    command, env = (
        (CONSOLE, "watch", "--nats", bus.url, "--since", "all"),
        terminal_environ(PYTHONPATH=str(REPOSITORY)),
    )
    with Terminal(*command, cwd=tmp_path, env=env) as terminal:
        terminal.wait_for("␛", 60)
        await publish_hostile(bus, HOSTILE[::-1])
        walk(terminal, *LIVE_KEYS, "2", "j", ENTER, ESCAPE, "G", ENTER, "w", "d", "n", ESCAPE)
        walk(terminal, *EVENT_KEYS[:1])
        while "strange" not in terminal.text:  # a subject of no stream: lost until the console has subscribed
            await publish_hostile(bus, HOSTILE)
            terminal.wait_until_quiet(0.3, 5)
        walk(terminal, *[key for key in EVENT_KEYS[1:] if key != "X"])
        terminate_and_check(terminal)


def test_hostile_files_and_file_names(tmp_path: Path) -> None:
    (tmp_path / "opened").mkdir()
    names = [
        b"\x1b[2J\x1b]52;c;cHdu\x07.json",
        "\u202enosj\u200b[@click=app.quit][x].json".encode(),
        b"\xff\x9b2J.json",
    ]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path / "opened") + b"/" + name)).write_bytes(b'{"schema": "\x1b]0;x\x07')
    for number in range(3):
        path = tmp_path / "opened" / f"{number}\x1b]0;x\x07.json"
        path.write_text(json.dumps(hostile_document(tmp_path / str(number))))
    with Terminal(
        CONSOLE, "open", str(tmp_path / "opened"), str(tmp_path / "no\x1b[2Jthing"), cwd=tmp_path
    ) as terminal:
        terminal.wait_for("␛", 60)
        terminal.wait_for("4 files cannot be read")
        walk_episodes(terminal, {SECOND_ROW: EPISODE_KEYS})
        terminate_and_check(terminal)


def hostile_log() -> bytes:
    texts = [*ESCAPES, TRAPS, HOSTILE, HUGE[:2_000_000]]
    raw = [text.encode("utf-8", "replace").replace(b"\n", b"\x0b") for text in texts]
    documents = [b'{"kind": "' + line[:5_000] + b'", "at": "' + line[:50] + b'"}' for line in raw]
    return b"\r\n".join(
        [*raw, *documents, b"\x9b2J\xff\x00\x1b]0;x\x07", b'{"subject": "\\u001b[2J\\u202e", "x": 1}', b"end"]
    )


def test_hostile_lines_of_logs_and_their_names(tmp_path: Path) -> None:
    name = b"\x1b]0;x\x07\xe2\x80\xae[b]\x9b.log"
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.write_bytes(hostile_log())
    (tmp_path / "other.log").write_text("other\n")
    paths = map(str, (path, tmp_path / "other.log"))
    with Terminal(CONSOLE, "open", *paths, cwd=tmp_path) as terminal:
        terminal.wait_for(lambda: terminal.row_of("Hex v").endswith(" B"), 60)
        walk(terminal, "j", "j", "X", "v", "j", "v", "j", "G", "k", "v", "k", "X", TAB, "l", TAB, "z", "z")
        walk(terminal, "/")
        terminal.wait_for("words and fields, such as")
        walk(terminal, "zw", ENTER)
        terminal.wait_for("matches zw")
        walk(terminal, ESCAPE, "J", "\x1b[200~\u202e\x9b\x1b[201~", ENTER, ESCAPE)
        terminal.wait_for("not a line number")
        walk(terminal, "n", "p", "2", "4", "?", "j", ESCAPE)
        terminate_and_check(terminal)
    assert b"bytes of UTF-8" in terminal.raw


def hostile_document(folder: Path) -> Any:  # noqa: ANN401
    """Return an episode file with hostile text in every text field; JSON holds no lone surrogates."""
    store = EpisodeStore(folder)
    index = open_index(store)
    record = RecordedEpisode(store, index).record_episode()
    index.close()
    text = HOSTILE.replace("\ud800", "") * 2
    document = as_json(record)
    episode = hostile_episode(text=text)
    for step in document["timesteps"]:
        step["chats"], step["observation"] = episode.steps[0].chats, episode.steps[0].observation
        step["action"] |= {"text": text, "tool_calls": [{"id": text, "name": text, "arguments": text}]}
    for name in ("env", "agent", "model", "node", "profile", "data_label", "transport", "env_episode_id"):
        document[name] = text
    document["error"] = {"type": text, "message": text, "traceback": text}
    document["spans"][0] |= {"name": text, "category": text, "track": text, "attributes": {text: text}}
    return document


async def publish_hostile(bus: NatsAccount, text: str) -> None:
    """Publish every kind of message with ``text`` in every text field."""
    text = text.replace("\ud800", "")  # JSON cannot hold a lone surrogate
    async with nats_client(bus) as client:
        await _publish_all(client, text)


async def _publish_all(client: Client, text: str) -> None:
    await ensure_streams(client.jetstream(), subjects.DURABLE)
    error = {"type": text, "message": text}
    warnings = [f"{text}x: {text}"]
    hostile_step = hostile_episode(text=text).steps[0]
    now = datetime.now(UTC)  # inference states of old items are not shown
    items: list[LiveItem] = [
        started(1, env=text, agent=text, model=text, batch_id=text, transport=text, data_label=text, profile=text),
        timestep(
            1,
            chats=hostile_step.chats,
            observation=hostile_step.observation,
            endpoint=text,
            model=text,
            warnings=warnings,
        ),
        ended(1, 2, error=error, outcome="error", success=False),
        started(2, env=text, agent=text, model=text),
        token(2, 1, "", failure=f"{text}x: {text}", at=now),
        token(2, 2, "", endpoint=text, model=text, at=now),
        *(token(2, 3, text), token(2, 4, text, part="reasoning"), token(2, 5, text, part="call", tool=text)),
        progress(),
        env_health(text, "down", cause=text, transport=text),
        model_health(text, "down", text),
    ]
    batch = {"node": text, "boot": text, "dropped": 3, "items": [as_json(item) for item in items]}
    for channel in subjects.LIVE_CHANNELS:
        await client.publish(subjects.live_subject(channel, "n"), json.dumps(batch).encode())
    fields = {"env": text, "agent": text, "model": text, "batch_id": text, "node": text}
    await _publish_event(client, subjects.EPISODE_COMPLETED, completed(3, profile=text, **fields), text)
    await _publish_event(client, subjects.BATCH_COMPLETED, batch_completed(3, **fields), text)
    await _publish_event(client, subjects.FIELD_STATUS, field_status(node=text, config=text, boot=text), text)
    for subject in (*subjects.DURABLE, "agentgym.live.episode.v1.n"):
        await client.publish(subject, text.encode("utf-8", "replace") + b"\x9b\xff", headers={"ce-type": "x\x9by"})
    await client.publish("strange.\x1b[2J\u202e\x9b.[/]", text.encode("utf-8", "replace"), headers={"a": "\x9b\u202e"})
    await client.flush()


async def _publish_event(client: Client, subject: str, event: msgspec.Struct, text: str) -> None:
    headers = {"ce-id": f"hostile:{subject}", "ce-type": subject, "ce-source": "\u202egnp", "ce-specversion": "1.0"}
    await client.publish(subject, json.dumps(as_json(event)).encode(), headers=headers)


def test_foreign_escapes_finds_escapes_that_the_console_never_writes() -> None:
    foreign: Sequence[str] = [
        "\x1b[2J",
        "\x1b]0;x\x07",
        "\x1b]8;;x\x1b\\",
        "\x9b2J",
        "\u202e",
        "\u200b",
        "\x1b[4:3m",
        "\0",
    ]
    for text in foreign:
        assert foreign_escapes(f"a{text}b".encode()), repr(text)
    assert foreign_escapes(b"\x80")
    assert foreign_escapes("\x1b[38;2;1;2;3mé 漢字 😀\x1b[0m\x1b[1;1H\n".encode()) == []
    assert foreign_escapes(b"\x1b\x1b[0m[2J")

"""Hostile text in every field, on every screen, in a real terminal: not one byte of it gets there as it is."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from agentgym_tui.safe_text import has_unsafe_chars
from runner.bus.streams import ensure_streams
from runner.events import subjects
from runner.events.live import LiveItem
from runner.store import EpisodeStore, open_index
from tests.support.command import REPOSITORY
from tests.support.console.samples import (
    HOSTILE,
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
from tests.support.episodes import RecordedEpisode, as_json
from tests.support.escapes import CLIPBOARD, foreign_escapes
from tests.support.nats_server import NatsServer
from tests.support.terminal import BACKSPACE, CTRL_P, ENTER, ESCAPE, TAB, Terminal, terminal_environ

pytestmark = pytest.mark.long

pytestmark = pytest.mark.timeout(180)

WALKS = [("0", (80, 24)), ("huge", (120, 40))]
if os.environ.get("AGENTGYM_FAULTS") == "full":
    WALKS += [("9", (200, 50)), ("5 read-only", (120, 40))]
CONSOLE = str(Path(sys.executable).with_name("agentgym-tui"))
SYNCHRONISED = "\x1b[?2026;2$y"
"""What a terminal answers that knows synchronised output."""

DIALOG = "╰"
"""Part of the frame of each dialog, and of nothing else."""

NOTHING = "no unsafe bytes"
"""What is said where there are no bytes to look at."""

OPENING = ("?", "b", "R", CTRL_P)
CTRL_S = "\x13"
LIVE = ["1", TAB, "j", TAB, "j", "k", "X", TAB, "j", "X", "z", "z", TAB, "z", "z", "N"]
ORDERS = ["r", "x", " ", "s", ".", "]", "[", "?", "j", ESCAPE, "b", ENTER, CTRL_P, "run", ESCAPE, "N"]
REFUSED = ["r", "x", " ", "s", ".", "Rb", "?", "j", ESCAPE, CTRL_P, "run", ESCAPE, "N"]
"""The same where nothing may be ordered: no dialog comes."""

EPISODE = ["j", "X", TAB, "G", "X", "w", "X", "J", "G", "X", "t", "n", "n", "p", "e"]
GLANCE = [key for key in EPISODE if key not in ("X", "e")]
"""Without looks at bytes, which take longest, and the export: what is told of it covers the names of the views."""

VIEWS = {"t": "● Transcript", "w": "● Trace", "J": "● JSON"}
EVENTS = ["3", "k", "v", "X", "k", "v", "k", "v", "k", TAB, "G", "t", "c", "j", ENTER, "t", " ", " ", "a", ESCAPE, "z"]
"""The messages of a bus, the views of some, the tree, an episode."""

LAST, SECOND = "G", "gj"
"""Lines of the list: no episode, and one that can be read."""


def console(text: str, cwd: Path, *size: int, **more: str) -> Terminal:
    """The console on a hostile session; ``text`` says which strings it is made of, ``more`` is of its environment."""
    columns, rows = size
    command = [sys.executable, "-m", "tests.support.console.hostile_console", *text.split()]
    return Terminal(
        *command, columns=columns, rows=rows, cwd=cwd, env=terminal_environ(PYTHONPATH=str(REPOSITORY), **more)
    )


def pasted(text: str) -> str:
    """As a terminal passes on what somebody has copied elsewhere: it leaves out escapes, and no more."""
    plain = text.replace("\x1b", "").encode("utf-8", "replace").decode()
    return f"\x1b[200~{plain}\x1b[201~"


def walk(terminal: Terminal, *keys: str) -> None:
    for key in keys:
        before = terminal.text
        terminal.send(key)
        terminal.wait_for(partial(shows, terminal, key, before))
        terminal.wait_until_quiet(0.06, 5)
        assert terminal.process.poll() is None, f"ended after {key!r}\n{terminal.text}"
        if key == "X":
            terminal.wait_until_quiet(0.2 * (NOTHING in before), 5)
            walk(terminal, *[ESCAPE] * (DIALOG in terminal.text))


def shows(terminal: Terminal, key: str, before: str) -> bool:
    """Whether a key has done what it is known to do."""
    text = terminal.text
    if key == "X":
        return DIALOG in text or NOTHING in text
    if key in OPENING:
        return DIALOG in text
    return (key != ESCAPE or DIALOG not in before or DIALOG not in text) and (
        "○ JSON" not in before or VIEWS.get(key, "") in text
    )


def visit(terminal: Terminal, walks: Mapping[str, Sequence[str]]) -> None:
    """The list of episodes, and from some of its lines to an episode and on to others; ``walks``: by line."""
    walk(terminal, "2", "j", "j", "k", "/")
    terminal.wait_for("words to match")
    walk(terminal, "zwj")
    terminal.wait_for("match zwj")
    walk(terminal, ESCAPE)
    terminal.wait_until_absent("match zwj")
    for line, keys in walks.items():
        terminal.wait_for("✗ unreadable")  # the last line
        walk(terminal, line, ENTER)
        terminal.wait_for("● Transcript")
        walk(terminal, *keys, ESCAPE)
        terminal.wait_until_absent("● Transcript")


def leave(terminal: Terminal, *, bells: bool = False) -> None:
    """End the console from outside, and see that it wrote nothing but its own, from its first to its last byte."""
    terminal.wait_until_quiet()
    terminal.kill(signal.SIGTERM)
    assert terminal.process.returncode == 128 + signal.SIGTERM, terminal.text
    check(terminal.raw, bells=bells)


def check(raw: bytes, *, bells: bool = False) -> None:
    """``bells`` may be rung by fields that do not take what is typed."""
    assert [found for found in foreign_escapes(raw) if not (bells and found[1:5] == "\\x07")] == []
    for once in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[<u"):  # in the payload as well, here from the end of the console
        assert raw.count(once) == 1
    assert b"\x1b[31m" not in raw
    assert b"\x1b]22;text" not in raw


@pytest.mark.parametrize(("text", "size"), WALKS)
def test_no_foreign_byte_reaches_the_terminal(tmp_path: Path, text: str, size: tuple[int, int]) -> None:
    with console(text, tmp_path, *size) as terminal:
        terminal.wait_for("Live", 60)
        terminal.send(SYNCHRONISED)
        walk(terminal, *LIVE, *(REFUSED if "read-only" in text else ORDERS))
        visit(terminal, {LAST: GLANCE, SECOND: EPISODE})
        walk(terminal, *EVENTS)
        leave(terminal)
    for seen in ("␛", "⚠", "bytes of UTF-8"):
        assert seen.encode() in terminal.raw, seen


def test_a_form_takes_hostile_text_and_shows_none_of_it(tmp_path: Path) -> None:
    with console("0", tmp_path, 120, 40) as terminal:
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
        leave(terminal, bells=True)


def test_a_copy_is_the_only_thing_on_the_clipboard_and_safe_unless_raw(tmp_path: Path) -> None:
    with console("0", tmp_path, 120, 40) as terminal:
        terminal.wait_for("Live", 60)
        walk(terminal, "2")
        terminal.wait_for("✗ unreadable")
        walk(terminal, SECOND, ENTER)
        terminal.wait_for("■ chat 1 of 2")
        walk(terminal, "y")
        terminal.wait_for(lambda: CLIPBOARD.search(terminal.raw) is not None)
        walk(terminal, "Y")
        terminal.wait_for(lambda: len(CLIPBOARD.findall(terminal.raw)) == 2)
        terminal.wait_until_quiet()
        terminal.kill(signal.SIGTERM)
    check(CLIPBOARD.sub(b"", terminal.raw))
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


def test_hostile_settings_and_what_was_kept_and_a_picture_of_it_all(tmp_path: Path) -> None:
    home = tmp_path / "agentgym-console"
    home.mkdir()
    (home / "console.yaml").write_text(HOSTILE_YAML)
    text = HOSTILE.encode("utf-8", "replace").decode()[:150]
    kept = {
        "screen": "events",
        "filters": {"episodes": text, "events": "\x1b", "events.subjects": text.replace(" ", "")},
        "sorting": {"subjects": ["\x1b[2J", True], "episodes": ["\u202e", False]},
        "sizes": {"\x1b]0;x\x07": 40, "events.wide.tree": 50},
    }
    (home / "console.json").write_text(json.dumps(kept))
    own = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with console("0 settings", tmp_path, 120, 40, **own) as terminal:
        terminal.wait_for("console.yaml, ignored settings", 60)
        terminal.wait_for("contains")
        terminal.send(SYNCHRONISED)
        walk(terminal, ESCAPE, ESCAPE)
        terminal.wait_for("foreign")
        walk(terminal, "t", "o", "o", "O", "<", ">", "-", "+", "t", "-", "=", "J", pasted(HOSTILE))
        walk(terminal, ENTER)
        terminal.wait_for("is not a sequence or a time")
        walk(terminal, "s", pasted(f"a..b {HOSTILE}"), ENTER)
        terminal.wait_for("is not a valid subject pattern")
        walk(terminal, CTRL_S)
        terminal.wait_for("screenshot written to")
        leave(terminal, bells=True)
    [picture] = tmp_path.glob("*.svg")
    assert picture.name.isascii() and "␛" in picture.read_text()
    assert not has_unsafe_chars(picture.read_text().replace("\xa0", " "))


async def test_hostile_messages_of_a_bus(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        await publish(server.url, HOSTILE)
        command, env = (
            (CONSOLE, "watch", "--nats", server.url, "--since", "all"),
            terminal_environ(PYTHONPATH=str(REPOSITORY)),
        )
        with Terminal(*command, cwd=tmp_path, env=env) as terminal:
            terminal.wait_for("␛", 60)
            await publish(server.url, HOSTILE[::-1])
            walk(terminal, *LIVE, "2", "j", ENTER, ESCAPE, "G", ENTER, "w", "J", "n", ESCAPE)
            walk(terminal, *EVENTS[:1])
            while "strange" not in terminal.text:  # not in a stream: what comes before the console listens is gone
                await publish(server.url, HOSTILE)
                terminal.wait_until_quiet(0.3, 5)
            walk(terminal, *[key for key in EVENTS[1:] if key != "X"])
            leave(terminal)


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
        visit(terminal, {SECOND: EPISODE})
        leave(terminal)


def hostile_document(folder: Path) -> Any:  # noqa: ANN401
    """An episode file in which all is text that may be; lone surrogates cannot be written in JSON."""
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


async def publish(url: str, text: str) -> None:
    """Everything that may be said on a bus, with ``text`` wherever there may be one."""
    text = text.replace("\ud800", "")  # a broker's JSON cannot hold it
    client = Client()
    await client.connect(url)
    await ensure_streams(client.jetstream(), subjects.DURABLE)
    error = {"type": text, "message": text}
    warned = [f"{text}x: {text}"]
    odd, now = hostile_episode(text=text).steps[0], datetime.now(UTC)  # what is told of endpoints is no history
    items: list[LiveItem] = [
        started(1, env=text, agent=text, model=text, batch_id=text, transport=text, data_label=text, profile=text),
        timestep(1, chats=odd.chats, observation=odd.observation, endpoint=text, model=text, warnings=warned),
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
    await _announce(client, subjects.EPISODE_COMPLETED, completed(3, profile=text, **fields), text)
    await _announce(client, subjects.BATCH_COMPLETED, batch_completed(3, **fields), text)
    await _announce(client, subjects.FIELD_STATUS, field_status(node=text, config=text, boot=text), text)
    for subject in (*subjects.DURABLE, "agentgym.live.episode.v1.n"):
        await client.publish(subject, text.encode("utf-8", "replace") + b"\x9b\xff", headers={"ce-type": "x\x9by"})
    await client.publish("strange.\x1b[2J\u202e\x9b.[/]", text.encode("utf-8", "replace"), headers={"a": "\x9b\u202e"})
    await client.flush()
    await client.close()


async def _announce(client: Client, subject: str, event: msgspec.Struct, text: str) -> None:
    headers = {"ce-id": f"hostile:{subject}", "ce-type": subject, "ce-source": "\u202egnp", "ce-specversion": "1.0"}
    await client.publish(subject, json.dumps(as_json(event)).encode(), headers=headers)


def test_the_grammar_finds_what_it_is_there_for() -> None:
    bad: Sequence[str] = ["\x1b[2J", "\x1b]0;x\x07", "\x1b]8;;x\x1b\\", "\x9b2J", "\u202e", "\u200b", "\x1b[4:3m", "\0"]
    for text in bad:
        assert foreign_escapes(f"a{text}b".encode()), repr(text)
    assert foreign_escapes(b"\x80")
    assert foreign_escapes("\x1b[38;2;1;2;3mé 漢字 😀\x1b[0m\x1b[1;1H\n".encode()) == []
    assert foreign_escapes(b"\x1b\x1b[0m[2J")

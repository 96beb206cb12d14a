"""A console on a session whose every external text is hostile; the safety tests run it.

python -m tests.support.console.hostile_console huge|FIRST [read-only] [settings]
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from agentgym_tui.app import Console
from agentgym_tui.config import config_path, read_settings, read_ui_state, state_path
from agentgym_tui.sessions.event_reader import EventSource
from agentgym_tui.sessions.file_library import row_table
from agentgym_tui.sessions.library import Library, TextSearch
from agentgym_tui.sessions.session import Session
from agentgym_tui.sessions.time_ordered_buffer import FeedItem
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.terminal import run_console
from runner.client.node_client import ControlRequestError, NodeClient, RunCommand
from runner.errors import StoreError
from runner.events.control import BatchState, NodeList, StartArgs
from runner.events.subjects import EPISODE_COMPLETED
from runner.results.summary import ResultSource
from runner.store.index_schema import EpisodeRow
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice, Since
from runner.subscribe.subscription import Subscription
from runner.types.notes import Kind, Note
from tests.support.console.fake_session import no_texts
from tests.support.console.samples import ESCAPES, HUGE, START, episode_id, hostile_episode, hostile_store, row

MARKS: Final = "\u0301\u20dd\u0302"
TRAPS: Final = (
    "\x1b[31m\x1b[999;999H\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[<u\x1b[6n\x1bc\x1b]22;text\x07\x1bP$q\x1b\\\x9d52;c;cHdu\x9c"
    "\u2067\u200d\u034f\u3164\U000e0041\x0e\x7f"
    + "e"
    + MARKS * 20
    + "\n"
    + MARKS * 3
    + "\ue000\U0010fffd\u1112"
    + "\u1161" * 9
    + "a\U0001f3fd\U0001f3fd"
)
"""Sequences that look like the console's own output, and sequences and stacks of marks that the samples lack."""

UNREADABLE: Final = episode_id(95)


class HostileLibrary(Library):
    """Four episodes, one of them damaged."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.unreadable: Sequence[UnreadableFile] = [UnreadableFile(Path("/x", text[:200].replace("\0", "")), text)]
        self.texts = TextSearch(no_texts())

    def notes(self, episode_id: str) -> Sequence[Note]:
        kinds: tuple[Kind, ...] = ("tag", "note")
        return [
            Note(id=f"{kind}{step}", step=step, kind=kind, text=self._text, at=START, author=self._text)
            for kind in kinds
            for step in (None, 0, 1)
        ]

    def rows(self, *, check_files: bool = True) -> list[EpisodeRow]:
        names = (
            "env",
            "agent",
            "model",
            "node",
            "profile",
            "data_label",
            "transport",
            "error_type",
            "batch_id",
            "fallback",
        )
        fields: dict[str, Any] = dict.fromkeys((*names, "flags", "failure"), self._text)
        return [row(n, **fields) for n in (95, 94, 93, 90)]

    def result_source(self) -> ResultSource:
        return row_table(self.rows())

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        if episode_id == UNREADABLE or not episode_id[-5:].isdecimal():
            raise StoreError(self._text)
        document = {"schema": 1, self._text.encode("utf-8", "replace").decode(): [{"content": "\x1b]0;x\x07" * 3}]}
        return hostile_episode(int(episode_id[-5:]), self._text), msgspec.json.encode(document) + b"\x1b[2J\x9b\xff"


class HostileControl(NodeClient):
    """Rejects every request with a hostile text."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda: None, lambda _: "")
        self._refusal = ControlRequestError(text, text)

    async def start(self, args: StartArgs) -> list[BatchState]:
        raise self._refusal

    async def command(self, command: RunCommand, *, batch_id: str | None = None, episode_id: str | None = None) -> None:
        raise self._refusal

    async def fetch_list(self, run_id: str | None = None) -> NodeList:
        raise self._refusal

    async def fetch_episode(self, episode_id: str) -> bytes:
        raise self._refusal


class HostileEvents(EventSource):
    """Messages with hostile subjects, headers, payloads and notices."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[Subscription]:
        self._pending = hostile_messages(self._text)
        yield cast(Subscription, self)

    async def next_raw(self, limit: int) -> Sequence[FeedItem]:
        if not self._pending:
            await asyncio.Event().wait()
        items, self._pending = self._pending, []
        return items

    async def count_waiting(self) -> int:
        raise TimeoutError


def hostile_messages(text: str) -> list[FeedItem]:
    head = text[:2_000]
    raw = text.encode("utf-8", "replace") + b"\x9b\xff\x1b[2J"
    headers = {head: head, "ce-source": head, "ce-time": "2026-03-04T05:06:07+00:00"}
    name = head.encode("utf-8", "replace").decode()  # JSON cannot hold lone surrogates
    item = {"kind": name, "episode_id": name, "env": name, "outcome": name}
    live = msgspec.json.encode({"node": name, "boot": name, "dropped": 3, "items": [item, {"kind": name}]})
    event = msgspec.json.encode({"episode_id": name, name: [name] * 3})
    return [
        Notice(kind="gap", text=text, count=3),
        RawMessage(f"foreign.{head}", headers, raw, head, 7, START, 10**12),
        RawMessage("foreign.json", {}, event),
        RawMessage(f"agentgym.live.{head}", {}, live),
        RawMessage("agentgym.live.episode.v1.n", {"a": head}, live, head, 8, START),
        RawMessage("agentgym.episode.completed.v1", {"ce-type": head, "ce-source": head}, raw),
        RawMessage(EPISODE_COMPLETED, headers, event),
        RawMessage(head, headers, event, head, 10**18, START),
        Notice(kind="no_history", text=text),
    ]


class HostileSession(Session):
    """A session whose every text is ``text``."""

    def __init__(self, text: str, *, read_only: bool) -> None:
        super().__init__(text, text if read_only else "", hostile_store(text))
        self.store.agents += ["oracle", text]
        self.store.model_names += [text]
        self.library: Library | None = HostileLibrary(text)
        self.control: NodeClient | None = HostileControl(text)
        self.events: EventSource | None = HostileEvents(text)
        self.data_dir: Path | None = Path("/x", text[:200].replace("\0", "").encode("utf-8", "replace").decode())

    async def start_node(self) -> None:
        raise ControlRequestError(self.title, self.title)

    async def stop_node(self, *, drain: bool = False) -> None:
        raise ControlRequestError(self.title, self.title)

    async def restart_node(self) -> None:
        raise ControlRequestError(self.title, self.title)

    async def use_profile(self, path: Path) -> None:
        raise ControlRequestError(self.title, self.title)

    async def run(self) -> None:
        await asyncio.Event().wait()


def hostile_text(words: Sequence[str]) -> str:
    """Return the huge text, or all samples from number ``words[0]`` on: short cells show only the beginning."""
    if "huge" in words:
        return HUGE
    first = int(words[0])
    return "".join([*ESCAPES[first:], TRAPS, *ESCAPES[:first]])


if __name__ == "__main__":
    session = HostileSession(hostile_text(sys.argv[1:]), read_only="read-only" in sys.argv)
    config = (read_settings(config_path(os.environ)), read_ui_state(state_path(os.environ)))
    sys.exit(run_console(Console(session, *config) if "settings" in sys.argv else Console(session), session))

"""Fakes of a session, its control client, its library and its events, for tests of the screens."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Never, cast

from msgspec.structs import replace

from agentgym_tui.sessions.event_reader import EventSource
from agentgym_tui.sessions.file_library import row_table
from agentgym_tui.sessions.library import Curation, ExportJob, Library, StateDirLibrary, TextSearch, TextSource
from agentgym_tui.sessions.session import Session
from agentgym_tui.sessions.time_ordered_buffer import FeedItem
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from runner.client.node_client import ControlRequestError, NodeClient, RunCommand
from runner.config import Profile, ProfileFile, read_profile
from runner.errors import StoreError
from runner.events.control import AnnotateArgs, BatchState, NodeList, ReplayArgs, ServerInfo, StartArgs
from runner.formats.export import Manifest
from runner.formats.training import Audit
from runner.node.retention import CleanUpAction, PruneReport
from runner.publish.outbox import Ack, Outbox
from runner.query.fields import Lookup
from runner.results.summary import ResultSource
from runner.store import EpisodeStore, open_index
from runner.store.index_schema import EpisodeRow
from runner.store.text_index import TextIndex
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Since
from runner.subscribe.subscription import Subscription
from runner.types import Outcome, Tokens
from runner.types.notes import Note
from tests.support.console.samples import (
    HOSTILE,
    START,
    FakeClock,
    batch_completed,
    batch_id,
    batch_state,
    busy_store,
    durable,
    empty_store,
    ended,
    episode,
    episode_id,
    error_store,
    fleet_store,
    live,
    node_list,
    row,
    started,
)
from tests.support.episodes import newest_rows


class FakeControl(NodeClient):
    """Records each request; raises ``refusal`` instead when it is set, and rejects commands to ``unknown`` batches."""

    def __init__(self) -> None:
        super().__init__(lambda: None, lambda _: "")
        self.started: list[StartArgs] = []
        self.refused: list[StartArgs] = []
        self.commands: list[tuple[RunCommand, str | None, str | None]] = []
        self.moves: list[tuple[str, int]] = []
        self.replays: list[ReplayArgs] = []
        self.annotations: list[AnnotateArgs] = []
        self.notes: dict[str, list[Note]] = {}
        self.servers: list[tuple[str, str]] = []
        self.n_sent_histories = 0
        self.fetched: list[str] = []
        self.files: dict[str, bytes] = {}
        self.refusal: ControlRequestError | None = None
        self.unknown: set[str] = set()
        self.warning: str | None = None
        self.lists: list[NodeList] = []

    async def start(self, args: StartArgs) -> list[BatchState]:
        if self.refusal is not None:
            self.refused.append(args)
        self._check()
        self.started.append(args)
        return [
            BatchState(
                batch_id=args.batch_id,
                battery_id=None,
                env=env,
                agent=args.agent or "",
                model=args.model,
                status="queued",
                n_done=0,
                n_planned=args.repeat * args.attempts,
                warning=self.warning,
            )
            for env in args.envs
        ]

    async def command(self, command: RunCommand, *, batch_id: str | None = None, episode_id: str | None = None) -> None:
        self._check()
        if batch_id in self.unknown:
            raise ControlRequestError(f"{command}: there is no batch {batch_id!r}", code="not_found")
        self.commands.append((command, batch_id, episode_id))

    async def command_all(self, command: RunCommand) -> None:
        self._check()
        self.commands.append((command, None, None))

    async def move(self, run_id: str, to: int) -> None:
        self._check()
        self.moves.append((run_id, to))

    async def replay(self, args: ReplayArgs) -> list[BatchState]:
        self._check()
        self.replays.append(args)
        return []

    async def annotate(self, args: AnnotateArgs) -> list[Note]:
        self._check()
        self.annotations.append(args)
        old, at = self.notes.get(args.episode_id, []), datetime(2026, 3, 4, tzinfo=UTC)
        gone = {(args.step, tag) for tag in (*args.add, *args.remove)}
        kept = [note for note in old if (note.step, note.text) not in gone and note.id != args.note_id]
        added = [Note(id=tag, step=args.step, kind="tag", text=tag, at=at) for tag in args.add]
        if args.note is not None and args.note_id is not None:
            added += [Note(id=args.note_id, step=args.step, kind="note", text=args.note, at=at, author="ada")]
        self.notes[args.episode_id] = [*kept, *added]
        return self.notes[args.episode_id]

    async def start_server(self, env: str) -> ServerInfo:
        self._check()
        self.servers.append(("start", env))
        return ServerInfo(env=env, status="starting", cause=None)

    async def stop_server(self, env: str) -> ServerInfo:
        self._check()
        self.servers.append(("stop", env))
        return ServerInfo(env=env, status="stopped", cause="requested")

    async def send_history(self) -> int:
        self._check()
        self.n_sent_histories += 1
        return 1204

    async def fetch_list(self, run_id: str | None = None) -> NodeList:
        self._check()
        return self.lists.pop(0) if self.lists else node_list()

    async def fetch_episode(self, episode_id: str) -> bytes:
        self._check()
        self.fetched.append(episode_id)
        if episode_id not in self.files:
            raise ControlRequestError(f"episode: no episode {episode_id}")
        return self.files[episode_id]

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal


def no_texts() -> TextSource:
    """Return a source without texts."""

    def read(episode_id: str) -> bytes:
        raise StoreError(f"there is no file of {episode_id}")

    path = Path(tempfile.gettempdir(), "no-such-folder", "text.sqlite")
    return TextSource(
        lambda: TextIndex(path, lambda _, id: read(id)), lambda *_: [(0, 0.0, None)], lambda: (0, True), read
    )


class FakeLibrary(Library):
    """``n`` stored episodes; loading an episode in ``damaged`` raises its reason."""

    def __init__(self, n: int = 3, unreadable: Sequence[UnreadableFile] = ()) -> None:
        self.unreadable = unreadable
        self.first_rows: Sequence[EpisodeRow] = ()
        self.damaged: dict[str, str] = {}
        self.stored = [row(number) for number in range(n)]
        self.loaded: list[str] = []
        self.noted: dict[str, str] = {}
        self.notes_state: object = None
        self.notes_of: Callable[[str], Sequence[Note]] = lambda _: ()
        self.folder: Path | None = None
        self.texts = TextSearch(no_texts())

    def lookups(self) -> Mapping[str, Lookup]:
        return {"note": lambda words, _: [id for id, note in self.noted.items() if words in note]}

    def notes(self, episode_id: str) -> Sequence[Note]:
        return self.notes_of(episode_id)

    def rows(self, *, check_files: bool = True) -> Sequence[EpisodeRow]:
        return list(reversed(self.stored))

    def path(self, episode_id: str) -> Path | None:
        return self.folder and self.folder / f"{episode_id}.json"

    def result_source(self) -> ResultSource:
        return row_table(self.stored)

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        self.loaded.append(episode_id)
        if (reason := self.damaged.get(episode_id)) is not None:
            raise StoreError(reason)
        stored = next((each for each in self.stored if each.episode_id == episode_id), None)
        if stored is None:
            raise StoreError(f"there is no episode {episode_id}")
        loaded = episode(stored.task_index, env=stored.env, agent=stored.agent, outcome=str(stored.outcome))
        loaded.episode_id = episode_id
        return loaded, json.dumps({"schema": 1, "episode_id": episode_id, "env": stored.env}).encode()


def _no_store() -> Never:
    raise StoreError("there is no store")


class FakeCuration(Curation):
    """Archives and deletes only in its answers."""

    def __init__(self) -> None:
        super().__init__(_no_store)

    async def clean_up(
        self, action: CleanUpAction, episode_ids: Collection[str], *, dry_run: bool = False
    ) -> PruneReport:
        n_done = len(episode_ids)
        is_final = action == "delete"
        return PruneReport(n_archived=0 if is_final else n_done, n_deleted=n_done if is_final else 0, n_freed=9_000)

    async def export(self, job: ExportJob) -> Manifest:
        from runner.formats.export import Manifest

        names = (job.target.name, job.target.title)
        return Manifest(
            format=names[0],
            format_version=names[1],
            version="1",
            created_at=START,
            query=job.query,
            filters=job.filters,
            n_selected=len(job.episode_ids),
            n_written=len(job.episode_ids) - 1,
            left_out={"it has no steps": 1},
        )

    async def audit(self, job: ExportJob) -> Audit:
        return Audit(n_episodes=14, n_groups=17, n_trainable=7, summary="this export would train 41% of its groups")


class FakeEvents(EventSource):
    """A bus: ``initial`` comes at each subscription, then what ``publish`` adds; ``opened`` lists queries."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[tuple[Sequence[str], Since]] = []
        self.initial: list[FeedItem] = []
        self._pending: asyncio.Queue[FeedItem] = asyncio.Queue()

    @asynccontextmanager
    async def open(self, patterns: Sequence[str], since: Since) -> AsyncIterator[Subscription]:
        self.opened.append((tuple(patterns), since))
        self._pending = asyncio.Queue()
        self.publish(*self.initial)
        yield cast(Subscription, self)

    def publish(self, *items: FeedItem) -> None:
        for item in items:
            self._pending.put_nowait(item)

    async def next_raw(self, limit: int) -> Sequence[FeedItem]:
        items = [await self._pending.get()]
        while len(items) < limit and not self._pending.empty():
            items.append(self._pending.get_nowait())
        return items

    async def count_waiting(self) -> int:
        return self._pending.qsize()


class FakeSession(Session):
    """A session that changes nothing by itself; a test changes ``store``."""

    def __init__(self, store: RunStore | None = None, *, read_only: str = "", data_dir: Path | None = None) -> None:
        super().__init__("node pmoves-4090", read_only, empty_store() if store is None else store)
        self.fake_control = FakeControl()
        self.control: NodeClient | None = self.fake_control
        self.fake_library = FakeLibrary()
        self.fake_library.notes_of = lambda id: [*self.fake_control.notes.get(id, ())]
        self.library: Library | None = self.fake_library
        self.fake_events = FakeEvents()
        self.events: EventSource | None = self.fake_events
        self.data_dir = data_dir
        self.running = asyncio.Event()
        self.closed = asyncio.Event()
        self.n_starts = self.n_restarts = 0
        self.stops: list[bool] = []
        self.profiles: list[Path] = []
        self.failure: BaseException | None = None

    @property
    def profile(self) -> tuple[Profile, ProfileFile]:  # type: ignore[override]
        return read_profile(None, environ={}, cwd=Path("/"))

    async def start_node(self) -> None:
        self.n_starts += 1
        if self.fake_control.refusal is not None:
            raise self.fake_control.refusal

    async def stop_node(self, *, drain: bool = False) -> None:
        self.stops.append(drain)

    async def restart_node(self) -> None:
        self.n_restarts += 1

    async def use_profile(self, path: Path) -> None:
        self.profiles.append(path)

    async def run(self) -> None:
        self.running.set()
        if self.failure is not None:
            raise self.failure
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed.set()


def empty_session() -> FakeSession:
    return FakeSession(empty_store())


def sortable_session() -> FakeSession:
    """Stored episodes with different values in each sortable column."""
    session = empty_session()
    session.fake_library.stored = [
        row(1, env="Maze", reward=0.5, outcome=Outcome.FAILURE, node=HOSTILE[:20]),
        row(2, env="Wordle", reward=-1.0),
        row(3, env="BabyAI", reward=0.5),
        row(4, env="maze", reward=float("nan")),
    ]
    return session


def busy_session(clock: FakeClock | None = None) -> FakeSession:
    return FakeSession(busy_store(clock))


def fleet_session() -> FakeSession:
    """A watched bus with five nodes, of which one is lost."""
    session = bus_session()
    session.store = fleet_store()
    return session


def mixed_session() -> FakeSession:
    """Session with a running battery, two batches that wait, and one that was interrupted."""
    session = FakeSession(busy_store())
    states = [
        batch_state(4, "interrupted", env="SQLGym", interruption="the server is gone"),
        batch_state(3, "queued", env="TextCraft"),
        batch_state(2, "queued", env="BabyAI"),
        batch_state(1, "queued", env="Maze", battery_id="battery"),
        batch_state(0, battery_id="battery"),
    ]
    session.store.apply_list(node_list(*states))
    return session


def ended_session() -> FakeSession:
    """Session after a battery of three environments, of which one was cancelled; nothing runs."""
    session = empty_session()
    store, names = session.store, ("Wordle", "Maze", "are:scenario_universe_21_m3k2sp")
    store.currency = "USD"
    players = [{"env": env, "agent": "react", "model": "qwen35_9b", "battery_id": "battery"} for env in names]
    store.apply_list(node_list(*(batch_state(n, "running", **players[n]) for n in (2, 1, 0))))
    for n, player in enumerate(players):
        store.apply_events([live(started(20 + n, batch_id=batch_id(n), **player))])
        store.apply_events([live(ended(20 + n, 1, outcome=Outcome.FAILURE, success=False, reward=0.0))])
    results: list[dict[str, Any]] = [
        {"success_rate": 0.7, "n_rated": 10, "n_errors": 0, "cost": 0.0123, "tokens": Tokens(52_000, 8_400)},
        {"success_rate": 0.25, "n_rated": 8, "n_errors": 2, "mean_reward": -0.125, "cost": 0.0000042},
        {"success_rate": None, "n_rated": 0, "n_errors": 0, "n_episodes": 1, "mean_reward": None},
    ]
    for n, (player, result) in enumerate(zip(players, results, strict=True)):
        status = "cancelled" if n == 2 else "completed"
        event = durable(batch_completed(n, status=status, **player, **result))
        store.apply_events([replace(event, time=START + timedelta(minutes=n + 1))])
    return session


def error_session() -> FakeSession:
    return FakeSession(error_store(), read_only="")


def session_with_messages(*subjects: str) -> FakeSession:
    """A busy session whose bus holds one message per subject, in this order."""
    session = busy_session()
    session.fake_events.initial = [
        RawMessage(subject, {}, b'{"n": %d}' % n, "S", n, START + timedelta(seconds=n))
        for n, subject in enumerate(subjects)
    ]
    return session


def files_session(n: int = 3) -> FakeSession:
    """Episode files without a node or a bus."""
    session = FakeSession(RunStore(now=FakeClock()), read_only="these are files: nothing can be started here")
    session.title, session.control, session.fake_library = "/srv/runs", None, FakeLibrary(n)
    session.events = None
    session.store.set_link(BusLink("none", "files"))
    session.library = session.fake_library
    return session


def bus_session() -> FakeSession:
    """A watched bus: read-only, without files."""
    session = FakeSession(busy_store(), read_only="watching only: nothing can be started or stopped from here")
    session.title, session.library = "watching only", None
    session.fake_control.files = {episode_id(0): b'{"schema": 1}'}
    return session


@contextmanager
def curating_session(data_dir: Path) -> Iterator[FakeSession]:
    """Yield a session on a state directory, whose episodes are all delivered and may be archived or deleted."""
    with closing(open_index(EpisodeStore(data_dir))) as index, closing(Outbox(index)) as outbox:
        index.write_waiting()
        outbox.collect()
        outbox.ack("local", [Ack(f"episode:{row.episode_id}", "S", 1) for row in newest_rows(index)])
    library, session = StateDirLibrary(lambda: data_dir), FakeSession(data_dir=data_dir)
    session.library = library
    session.curation = session.exporter = Curation(library.opened)
    yield session
    library.close()


def watching(session: FakeSession) -> FakeSession:
    """Return the session without permission to send commands."""
    session.read_only = "watching only"
    return session

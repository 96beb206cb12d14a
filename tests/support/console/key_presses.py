"""Key presses and their effects: what a press is, what it can change, and the sessions to press keys in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from agentgym_tui.app import Console
from agentgym_tui.logs import LogFile
from agentgym_tui.screens.dialogs.texts import ConfirmDialog
from agentgym_tui.sessions.file_library import row_table
from agentgym_tui.widgets.inputs import CheckList, OptionStepper
from agentgym_tui.widgets.lists import LineList
from runner.store.index_schema import EpisodeRow
from runner.store.passages import Hit
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import (
    FakeCuration,
    FakeSession,
    busy_session,
    files_session,
    session_with_messages,
)
from tests.support.console.known_texts import with_texts
from tests.support.console.log_consoles import log_lines
from tests.support.console.pilot import screen_text
from tests.support.console.samples import (
    HOSTILE,
    batch_state,
    env_health,
    episode,
    episode_id,
    live,
    model_health,
    node_health,
    node_list,
    row,
    started,
    step,
)

ReadValue: TypeAlias = Callable[[Console], object]


class KeyPress(NamedTuple):
    """A key, and the value that ``read`` returns after it: ``expected``, or any other value than before.

    Attributes:
        command: id of the command that the key runs; "" for a key that only prepares the next one.
    """

    command: str
    key: str
    read: ReadValue
    expected: object = ...


@dataclass(frozen=True)
class KeySequence:
    """Keys on one screen; ``first_keys`` lead there from the start, and ``first_text`` shows that it is ready."""

    session: Callable[[], FakeSession]
    first_text: str
    presses: Sequence[KeyPress]
    first_keys: tuple[str, ...] = ()
    size: tuple[int, int] = (112, 32)


def shows(text: str) -> ReadValue:
    return lambda app: text in screen_text(app)


def screen_name(app: Console) -> str:
    """Return the name of the screen's class, or the scope of a dialog with a question."""
    return app.screen.SCOPE if isinstance(app.screen, ConfirmDialog) else type(app.screen).__name__


def focused_id(app: Console) -> str | None:
    return None if app.focused is None else app.focused.id


def n_requests(app: Console) -> int:
    assert isinstance(app.session, FakeSession)
    control = app.session.fake_control
    requests = [*control.commands, *control.started, *control.moves, *control.replays, *control.servers]
    return len(requests)


def n_requests_and_screen(app: Console) -> tuple[int, str]:
    return n_requests(app), screen_name(app)


def n_sent_histories(app: Console) -> int:
    assert isinstance(app.session, FakeSession)
    return app.session.fake_control.n_sent_histories


def n_node_starts(app: Console) -> int:
    assert isinstance(app.session, FakeSession)
    return app.session.n_starts


def n_node_restarts(app: Console) -> int:
    assert isinstance(app.session, FakeSession)
    return app.session.n_restarts


def node_stops(app: Console) -> list[bool]:
    assert isinstance(app.session, FakeSession)
    return app.session.stops


def clipboard(app: Console) -> str:
    return app.clipboard


def pane_sizes(app: Console) -> dict[str, int]:
    return dict(app.ui_state.sizes)


def sort_order(app: Console) -> object:
    return dict(app.ui_state.sorting)


def is_exiting(app: Console) -> bool:
    return app._exit  # Textual has no public attribute for it


def cursor_of(selector: str) -> ReadValue:
    return lambda app: app.screen.query_one(selector, LineList).cursor


def scroll_offset(selector: str) -> ReadValue:
    return lambda app: app.screen.query_one(selector, LineList)._left


def checked_rows(app: Console) -> set[int]:
    return set(app.screen.query_one(CheckList).chosen)


def agent_index(app: Console) -> int:
    return app.screen.query_one("#agent", OptionStepper).index


def running_battery() -> FakeSession:
    """Session with a battery: one of its batches runs two episodes, the other is queued."""
    session = busy_session()
    battery = [batch_state(0, battery_id="battery"), batch_state(1, "queued", battery_id="battery", n_planned=0)]
    session.store.apply_list(node_list(*battery))
    session.store.batches[battery[0].batch_id].n_errors = 2
    session.store.agents.append("react")
    session.store.apply_events([live(started(4, battery_id="battery"))])
    return session


def new_broker() -> FakeSession:
    """Session of a node with an external broker that has not got its earlier events."""
    session = busy_session()
    session.store.apply_health(node_health(egress="nats://broker:4222", n_held=1204))
    return session


def broken_machine() -> FakeSession:
    """Session of a node with a model server and an environment server that do not answer."""
    session = busy_session()
    server = env_health("WebShop", "down", transport="http", cause="connection refused")
    session.store.apply_events([live(model_health("vllm", "down", "connection refused"), server)])
    return session


def many_files() -> FakeSession:
    return files_session(60)


def curated_files() -> FakeSession:
    """Session with three stored episodes that can be archived and deleted."""
    session = files_session(3)
    session.curation = session.exporter = FakeCuration()
    return session


def found_lines() -> FakeSession:
    """Session whose two newest episodes have three lines with a word."""
    lines = [Hit(step, "observation", "a door", 2, 6) for step in (0, 1)]
    return with_texts(files_session(60), {episode_id(59): lines, episode_id(58): lines[:1]})


def episode_to_read() -> FakeSession:
    """Session with a stored episode: its steps 1 and 3 have another reward, 2 is not valid, at 3 an endpoint fails."""
    session = files_session(0)
    session.fake_library.stored = [row(1)]
    fields: list[dict[str, Any]] = [{"reward": 0.0}, {"reward": 0.5}, {"reward": 0.5, "valid": False}]
    fields.append({"reward": 1.0, "endpoint": "lab", "warnings": ("gateway: 503",)})
    read = episode(1, steps=[step(index, **each) for index, each in enumerate(fields)])
    session.fake_library.load = lambda _: (read, b"{}")  # type: ignore[method-assign, assignment]
    return session


def selected(table: str) -> ReadValue:
    """Return a function that returns the key of the selected row of a table."""
    return lambda app: app.screen.query_one(table, LineList).key


def growing_files() -> FakeSession:
    """Session whose library has one more episode each time it is listed."""
    session = files_session(60)
    rows = session.fake_library.rows

    def rows_and_one_more(*, check_files: bool = True) -> Sequence[EpisodeRow]:
        session.fake_library.stored.append(row(len(session.fake_library.stored)))
        return rows()

    session.fake_library.rows = rows_and_one_more  # type: ignore[method-assign]
    session.fake_library.result_source = lambda: row_table(rows_and_one_more())  # type: ignore[method-assign]
    return session


class ReopenCountingLog(LogFile):
    """Log file that counts how often it was reopened."""

    n_openings = 0

    def reopen(self) -> None:
        self.n_openings += 1
        super().reopen()


def n_reopened(app: Console) -> int:
    return sum(log.n_openings for log in app.session.logs if isinstance(log, ReopenCountingLog))


def two_logs() -> FakeSession:
    """Session with two log files in the current folder."""
    session = files_session()
    for name in ("one", "two"):
        Path(f"{name}.jsonl").write_bytes(log_lines(50))
    session.logs = [ReopenCountingLog(Path(f"{name}.jsonl").resolve()) for name in ("one", "two")]
    return session


def hostile_event() -> FakeSession:
    session = session_with_messages()
    session.fake_events.initial = [RawMessage("x", {}, HOSTILE.encode("utf-8", "replace"))]
    return session


def wide_event() -> FakeSession:
    session = session_with_messages(*["orders.eu"] * 3, *["bills"] * 2)
    session.fake_events.initial.append(RawMessage("wide", {}, b'{"episode_id": "' + b"x" * 600 + b'"}'))
    return session

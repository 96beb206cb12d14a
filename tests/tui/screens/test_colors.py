"""Themes, and that no meaning is carried by color alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from agentgym_tui.commands import Keymap
from agentgym_tui.presenters.cells import Cell, TextSource
from agentgym_tui.presenters.episode_facts import SpanRows, StepRows
from agentgym_tui.presenters.episode_rows import EpisodeRows, list_summary
from agentgym_tui.presenters.events import EventRows, SubjectRows, empty_events_lines, entry_info, events_heading
from agentgym_tui.presenters.live import EnvironmentRows, welcome_lines
from agentgym_tui.presenters.status_line import progress_line, status_lines
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.state.episode_list import EpisodeList, UnreadableFile
from agentgym_tui.state.event_log import EventLog, EventQuery
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.widgets.lists import LineList, LineRenderer
from runner.events.codec import encode
from runner.events.subjects import EPISODE_COMPLETED
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice
from runner.types import Outcome
from tests.support.console.fake_session import FakeEvents, FakeSession
from tests.support.console.live_items import START, completed
from tests.support.console.pilot import SIZE, console_app, wait_until
from tests.support.console.samples import busy_store, empty_store, error_store, row, span


async def test_the_status_is_first_on_every_screen_and_as_calm_as_what_is_below_it() -> None:
    app = console_app(FakeSession(busy_store()))
    async with app.run_test(size=SIZE) as pilot:
        backgrounds = set()
        for theme in ("textual-dark", "textual-light", "solarized-light", "catppuccin-latte"):
            app.theme = theme
            await pilot.pause()
            for key in ("1", "2", "5", "6", "7"):
                await pilot.press(key)
                await wait_until(pilot, lambda: bool(app.screen.query("#status")), "the screen")
                status = app.screen.query_one("#status", LineRenderer)
                await wait_until(pilot, lambda status=status: bool(status.region), "its layout")  # type: ignore[misc]
                assert status.region.y == 0
                assert status.background_colors[1] == app.screen.query(LineList).first().background_colors[1]
            backgrounds.add(status.background_colors[1])
        assert len(backgrounds) == 4, "each theme has been drawn"


def run_cells() -> Iterator[Cell]:
    """Return the cells of environments, steps, episodes, spans, progress and status lines."""
    stored = [row(n, outcome=outcome, success=not n, error_type="Fault") for n, outcome in enumerate(Outcome)]
    episode_list = EpisodeList()
    episode_list.set_stored(stored, [UnreadableFile(Path("/x"), "no JSON")])
    for store in (busy_store(), error_store(), empty_store()):
        episodes = [StepRows(episode) for episode in store.episodes.values()]
        episode_list.update_live(store.episodes.values())
        spans = SpanRows([span(1), replace(span(2), attributes={"error": "x"})])
        sources: list[TextSource] = [EnvironmentRows(store), EpisodeRows(episode_list), spans, *episodes]
        for rows in sources:
            yield from (cell for index in range(len(rows)) for cell in rows.line(index, 200))
        lines = [
            *status_lines(store, "x", 200, max_cause_lines=3),
            *welcome_lines(store, 200, Keymap().key),
            list_summary(episode_list, "", "esc", 200),
        ]
        progress = progress_line(store.batch_registry.active(), 200, now=0.0, lost=True)
        yield from (cell for line in [*lines, progress] for cell in line)


def event_cells() -> Iterator[Cell]:
    """Return the cells of messages, subjects and the heading of the events screen."""
    log, store = EventLog(), busy_store()
    store.n_malformed = 1
    messages = [
        RawMessage(EPISODE_COMPLETED, {}, encode(completed()), "S", 1, START, 5_000),
        RawMessage(
            EPISODE_COMPLETED, {"ce-time": "2027-01-01T00:00:00Z", "ce-source": "n"}, b"{", "S", 2, START, 5_000
        ),
        RawMessage("orders.eu", {}, b"\x1b[2J"),
    ]
    notices = [Notice(kind="gap", text="3 left", count=3), Notice(kind="skipped", text="2 too fast", count=2)]
    for state in (BusLink("connected"), BusLink("disconnected", "refused"), BusLink("stalled", "no answer")):
        store.set_link(state)
        for view in (EventQuery(), EventQuery(is_history=True)):
            reader = EventReader(FakeEvents(), log, lambda: None)
            reader.set_query(view)
            log.append([*messages, *notices], START)
            for reader.paused in (False, True):
                yield from (cell for line in events_heading(reader, log, store, Keymap().key, 300) for cell in line)
            yield from (
                cell for line in empty_events_lines(reader, EventLog(), store, Keymap().key, 200) for cell in line
            )
    rows, tree = EventRows(log), SubjectRows.from_tree(log.subjects)
    sources: list[TextSource] = [rows, tree]
    for source in sources:
        yield from (cell for index in range(len(source)) for cell in source.line(index, 200))
    yield from (cell for index in range(len(rows)) for cell in entry_info(rows.entry(index), "formatted"))


def test_colored_texts_also_have_a_sign_or_word() -> None:
    tones: dict[str, set[str]] = {}
    for cell in (*run_cells(), *event_cells()):
        tones.setdefault(cell.text.strip(), set()).add(cell.tone)
    meanings = {text: used & {"good", "bad", "warn"} for text, used in tones.items()}
    assert {tone for used in meanings.values() for tone in used} == {"good", "bad", "warn"}
    assert [text for text, used in meanings.items() if len(used) > 1] == []
    sign_or_word = re.compile(r"[-✗!◐◔…‖○?⚠a-z]")
    assert [text for text, used in meanings.items() if used & {"bad", "warn"} and not sign_or_word.search(text)] == []

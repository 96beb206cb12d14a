from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.services import MAX_CLIPBOARD_BYTES, ExportError, write_trace
from agentgym_tui.sessions.episode_files import episode_from_record
from agentgym_tui.state.episode import Episode
from agentgym_tui.widgets.lists import LineList, Table
from runner.events.live import LiveAction
from runner.store.index_schema import episode_row
from runner.util.safe_values import encode
from tests.support.are_episodes import IDLE, JUDGE_FAILED, MISSED, are_record
from tests.support.console.fake_session import FakeSession, bus_session, busy_session, files_session
from tests.support.console.pilot import (
    console_pilot,
    screen_text,
    toast_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import (
    HOSTILE,
    NODE,
    completed,
    durable,
    ended,
    episode,
    episode_id,
    heartbeat,
    hostile_episode,
    live,
    row,
    span,
    step,
    timestep,
    token,
)
from tests.support.perfetto import all_slices

HEADING, STEPS, TRANSCRIPT, TRACE, JSON = "#heading", "#steps", "#transcript", "#trace", "#json"
RUNNING = episode_id(3)
ALL_WIDGETS = [HEADING, STEPS, "#tabs", TRANSCRIPT, TRACE, JSON]


@asynccontextmanager
async def episode_pilot(
    session: FakeSession, key: str = episode_id(1), size: tuple[int, int] = (120, 40)
) -> AsyncIterator[Pilot[None]]:
    """Run a console on the screen of an episode and yield once the episode is loaded."""
    async with console_pilot(session, size) as pilot:
        await show_episode(pilot, session, key)
        yield pilot


async def show_episode(pilot: Pilot[None], session: FakeSession, key: str = episode_id(1)) -> None:
    """Open the screen of an episode of a session and wait until the episode is loaded."""
    await pilot.app.push_screen(EpisodeScreen(session, key))
    await wait_until(pilot, lambda: widget_text(pilot, HEADING) != "" and "loading" not in widget_text(pilot, HEADING))


def session_with_episode(loaded: Episode, data: bytes = b'{"schema": 1}') -> FakeSession:
    """Return a files session with one episode."""
    session = files_session(0)
    session.fake_library.stored = [row(1)]
    session.fake_library.load = lambda _: (loaded, data)  # type: ignore[method-assign, assignment]
    return session


def focused_id(pilot: Pilot[None]) -> str:
    return (pilot.app.focused and pilot.app.focused.id) or ""


async def test_an_episode_opens_at_its_first_step_and_each_view_has_its_key_and_its_name_to_click() -> None:
    views = {"w": ("trace", "episode"), "t": ("transcript", "guess 0"), "d": ("json", '"schema": 1')}
    async with episode_pilot(busy_session()) as pilot:
        assert "Wordle task 1 · ✓ success · 3 of 4 · reward 0.75 · 3 rounds" in widget_text(pilot, HEADING)
        assert episode_id(1) in widget_text(pilot, HEADING)
        assert widget_text(pilot, STEPS).count("guess") == 3
        assert "▸" in widget_text(pilot, STEPS).splitlines()[1]
        await wait_for_widget_text(pilot, TRANSCRIPT, "observation 0", "guess 0", "reward 0.25")
        assert focused_id(pilot) == "steps"
        await pilot.press("j", "down")
        await wait_for_widget_text(pilot, TRANSCRIPT, "guess 2")
        await pilot.press("g")
        await wait_for_widget_text(pilot, TRANSCRIPT, "guess 0")
        await pilot.press("enter")
        assert focused_id(pilot) == "transcript"
        for key, (view, text) in views.items():
            await pilot.press(key)
            await wait_for_widget_text(pilot, f"#{view}", text)
            assert pilot.app.screen.query_one(ContentSwitcher).current == view
            assert focused_id(pilot) == view
        await pilot.press("t")
        for name, view in (("Data", "json"), ("Trace", "trace"), ("Transcript", "transcript")):
            await pilot.click("#tabs", offset=(widget_text(pilot, "#tabs").index(name), 0))
            await wait_until(pilot, lambda view=view: focused_id(pilot) == view)  # type: ignore[misc]
        await pilot.click("#tabs", offset=(60, 0))
        assert focused_id(pilot) == "transcript"
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, EpisodeScreen))


async def test_panes_are_zoomed_and_side_by_side_in_a_wide_terminal() -> None:
    async with episode_pilot(busy_session()) as pilot:
        for key, zoomed, hidden in (("d", JSON, STEPS), ("shift+tab", STEPS, JSON)):
            await pilot.press(key, "z")
            await wait_until(pilot, lambda hidden=hidden: not widget_text(pilot, hidden))  # type: ignore[misc]
            assert pilot.app.screen.query_one(zoomed).size.width > 100
            await pilot.press("z")
            await wait_until(pilot, lambda hidden=hidden: bool(widget_text(pilot, hidden)))  # type: ignore[misc]
        screen = pilot.app.screen
        for width, height in ((60, 20), (80, 24), (200, 50)):
            await pilot.resize_terminal(width, height)
            await wait_until(pilot, lambda: screen.query_one(HEADING).region.width == width, "the size")  # noqa: B023
            steps, views = screen.query_one(STEPS).region, screen.query_one("#views").region
            assert (steps.right <= views.x) == (width >= 110)
            assert all(view.size.height >= 5 for view in screen.query(LineList) if view.display and view.size)


WALKED = [step(index, world=encode([["at ", [str(index), "yellow"]]])) for index in range(3)]


async def test_the_world_follows_the_selected_step_and_shows_also_the_one_before() -> None:
    played = episode(1, steps=WALKED, reset_world=encode([["at the start"]]))
    async with episode_pilot(session_with_episode(played)) as pilot:
        assert "World" in widget_text(pilot, "#tabs")
        await pilot.press("W")
        await wait_for_widget_text(pilot, "#world", "at 0")
        assert focused_id(pilot) == "world"
        assert "after step 0 · enter: before it" in widget_text(pilot, "#world")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, "#world", "at the start")
        assert "before step 0 · enter: after it" in widget_text(pilot, "#world")
        pilot.app.screen.query_one(STEPS).focus()
        await pilot.press("j", "j")
        await wait_for_widget_text(pilot, "#world", "at 1")
        await pilot.press("shift+tab", "y")
        assert pilot.app.clipboard == "at 1"


async def test_what_an_episode_has_not_is_no_tab_but_its_key_explains() -> None:
    async with episode_pilot(session_with_episode(episode(1, spans=[]))) as pilot:
        for name, key, why in (
            ("World", "W", "No picture of the environment"),
            ("Evaluation", "v", "the environment gave no evaluation"),
        ):
            assert name not in widget_text(pilot, "#tabs")
            await pilot.press(key)
            await wait_for_widget_text(pilot, f"#{name.lower()}", why)
            await wait_for_widget_text(pilot, "#tabs", f"● {name}")
            await pilot.press("t")
            await wait_until(pilot, lambda name=name: name not in widget_text(pilot, "#tabs"))  # type: ignore[misc]
        await pilot.press("w", "y")
        await wait_until(pilot, lambda: "nothing to copy" in toast_text(pilot))


async def test_next_and_previous_episode_stop_at_the_ends_of_the_list() -> None:
    session = busy_session()
    async with episode_pilot(session, episode_id(2)) as pilot:
        await pilot.press("n")
        await wait_for_widget_text(pilot, HEADING, "task 1 ·", "3 of 4")
        await wait_until(pilot, lambda: episode_id(1) in session.fake_library.loaded)
        await pilot.press("n", "n")
        await wait_until(pilot, lambda: "this is the last episode" in toast_text(pilot))
        await wait_for_widget_text(pilot, HEADING, "task 0", "4 of 4")
        await pilot.press("p")
        await wait_for_widget_text(pilot, HEADING, "task 1", "3 of 4")
        await pilot.press("p", "p", "p")
        await wait_until(pilot, lambda: "this is the first episode" in toast_text(pilot))
        await wait_for_widget_text(pilot, HEADING, "task 3", "1 of 4", "▶ running")


async def test_only_the_last_of_several_requested_episodes_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    session, gate, load = busy_session(), threading.Event(), busy_session().fake_library.load

    def slow_load(wanted_id: str) -> tuple[Episode, bytes]:
        assert gate.wait(20)
        return load(wanted_id)

    async with episode_pilot(session, RUNNING) as pilot:
        monkeypatch.setattr(session.fake_library, "load", slow_load)
        await pilot.press("n", "n", "n")
        await wait_for_widget_text(pilot, HEADING, "loading …", "task 0")
        await wait_until(pilot, lambda: "guess" not in widget_text(pilot, STEPS))  # not the steps of another episode
        gate.set()
        await wait_for_widget_text(pilot, STEPS, "guess 2")
        assert "task 0" in widget_text(pilot, HEADING)


async def test_a_running_episode_is_updated_and_the_selected_step_and_its_world_stay() -> None:
    session = busy_session()
    async with episode_pilot(session, RUNNING) as pilot:
        await wait_for_widget_text(pilot, HEADING, "▶ running")
        await wait_for_widget_text(pilot, TRANSCRIPT, "the word may be")
        session.store.apply_events([live(timestep(3, 2, seq=4, action=LiveAction("the third")))])
        await wait_for_widget_text(pilot, STEPS, "the third")
        await wait_for_widget_text(pilot, TRANSCRIPT, "the third")
        session.store.apply_events([live(token(3, 5, "and now the rest", 3))])
        await wait_for_widget_text(pilot, TRANSCRIPT, "and now the rest")
        await pilot.press("W")
        world = [["now at ", ["7", "red"]]]
        session.store.apply_events([live(timestep(3, 3, seq=50, world=world, reset_world=[["start"]]))])
        await wait_for_widget_text(pilot, "#world", "now at 7")
        session.store.apply_events([live(token(3, 51, "I go ", 4))])
        await wait_for_text(pilot, "I go")
        assert "after step 3 " in widget_text(pilot, "#world")
        assert "now at 7" in widget_text(pilot, "#world")
        assert session.store.episodes[RUNNING].reset_world == encode([["start"]])
        await pilot.press("t", "shift+tab", "g")
        await wait_for_widget_text(pilot, TRANSCRIPT, "guess 0")
        session.store.apply_events([live(timestep(3, 4, seq=52))])
        await wait_for_widget_text(pilot, STEPS, "guess 4")
        assert pilot.app.screen.query_one(STEPS, Table).key == "0"
        assert "guess 0" in widget_text(pilot, TRANSCRIPT)


async def test_the_file_of_an_episode_is_shown_and_exported_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = busy_session()
    session.fake_library.stored = []
    async with episode_pilot(session, RUNNING) as pilot:
        await wait_for_widget_text(pilot, HEADING, "▶ running")
        await pilot.press("d")
        await wait_for_widget_text(pilot, JSON, "its file is written when it ends")
        await pilot.press("e")
        await wait_until(pilot, lambda: "its file is written when it ends" in toast_text(pilot).replace("\n", " "))
        session.fake_library.stored.append(row(3))
        await pilot.press("e")  # before its end was received
        await wait_until(pilot, lambda: "exported to" in toast_text(pilot))
        assert "▶ running" in widget_text(pilot, HEADING)
        path = tmp_path / f"{RUNNING}.json"
        assert json.loads(path.read_bytes())["episode_id"] == RUNNING
        assert path.stat().st_mode & 0o777 == 0o600
        session.store.apply_events([live(ended(3, 6))])
        await wait_for_widget_text(pilot, HEADING, "✓ success")
        await wait_for_widget_text(pilot, JSON, '"schema": 1')
        await pilot.press("e")
        await wait_until(pilot, lambda: f"{RUNNING}-2.json" in toast_text(pilot).replace("\n", ""))
        deleted = tmp_path / "deleted"
        deleted.mkdir()
        monkeypatch.chdir(deleted)
        deleted.rmdir()
        await pilot.press("e")
        await wait_until(pilot, lambda: "not exported" in toast_text(pilot))


async def test_an_ended_episode_without_a_file_gives_the_reason() -> None:
    session = busy_session()
    session.fake_library.stored, session.fake_library.damaged = [], {RUNNING: "it is\ndamaged \x1b"}
    async with episode_pilot(session, RUNNING) as pilot:
        session.store.apply_events([live(ended(3, 4))])
        await wait_for_widget_text(pilot, HEADING, "✓ success")
        await pilot.press("d")
        await wait_for_widget_text(pilot, JSON, "not available", "damaged ␛")
        await pilot.press("e")
        await wait_until(pilot, lambda: "not exported" in toast_text(pilot))
        assert "damaged ␛" in toast_text(pilot)


async def test_a_damaged_file_gives_the_reason_and_the_next_episode_is_shown() -> None:
    session = files_session(3)
    session.fake_library.damaged[episode_id(1)] = f"it is {HOSTILE}"
    async with console_pilot(session) as pilot:
        await wait_for_widget_text(pilot, "#summary", "3 episodes")
        await pilot.press("j", "enter")
        await wait_for_widget_text(pilot, HEADING, "✗ cannot be shown", "2 of 3")
        await wait_for_widget_text(pilot, TRANSCRIPT, "this episode cannot be shown", "␛[2J")
        assert "guess" not in widget_text(pilot, STEPS)
        await pilot.press("d", "w", "t", "e")
        await wait_until(pilot, lambda: "not exported: it is ␛" in " ".join(toast_text(pilot).split()))
        await pilot.press("n")
        await wait_for_widget_text(pilot, STEPS, "guess 0")
        await wait_for_widget_text(pilot, TRANSCRIPT, "guess 0")


async def test_an_episode_of_a_watched_bus_is_requested_and_again_when_its_node_is_back() -> None:
    session = bus_session()
    async with episode_pilot(session) as pilot:
        assert session.fake_control.fetched == [episode_id(1)]
        await wait_for_widget_text(pilot, STEPS, "guess 2")
        await pilot.press("d")
        await wait_for_widget_text(pilot, JSON, "no episode")
        session.store.nodes[NODE].lost = True
        session.store.apply_events([durable(completed(20))])
        await show_episode(pilot, session, episode_id(20))
        await wait_for_widget_text(pilot, TRANSCRIPT, "this episode cannot be shown", f"no episode {episode_id(20)}")
        assert "step 0" not in widget_text(pilot, "#tabs")
        n_requests = session.fake_control.fetched.count(episode_id(20))
        session.store.apply_events([durable(completed(21))])
        await pilot.pause()
        assert session.fake_control.fetched.count(episode_id(20)) == n_requests
        session.store.apply_events([live(heartbeat())])
        await wait_until(pilot, lambda: session.fake_control.fetched.count(episode_id(20)) == n_requests + 1)


async def test_enter_shows_and_hides_earlier_messages_and_an_episode_without_steps_shows_its_error() -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "the rules"},
        {"role": "assistant", "content": "an old answer"},
        {"role": "user", "content": "the newest observation"},
        {"role": "assistant", "content": "guess 0"},
    ]
    async with episode_pilot(session_with_episode(episode(1, steps=[step(0, chats=[chat]), step(1)]))) as pilot:
        await wait_for_widget_text(pilot, TRANSCRIPT, "2 earlier messages", "the newest observation")
        assert "enter: all" in widget_text(pilot, "#tabs")
        await pilot.press("t", "enter")
        await wait_for_widget_text(pilot, TRANSCRIPT, "the rules", "an old answer")
        assert "enter: fewer" in widget_text(pilot, "#tabs")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "the rules" not in widget_text(pilot, TRANSCRIPT))
        failed = episode(1, steps=[], outcome="error", error_type="EnvironmentFault", error_message="no reset")
        await show_episode(pilot, session_with_episode(failed))
        await wait_for_widget_text(pilot, HEADING, "! error: EnvironmentFault", "✗ EnvironmentFault: no reset")
        await wait_for_widget_text(pilot, TRANSCRIPT, "observation 0", "no reset")
        await show_episode(pilot, session_with_episode(episode(1)))
        await wait_for_widget_text(pilot, STEPS, "guess")
        assert isinstance(pilot.app.screen, EpisodeScreen)
        pilot.app.screen._clear_other()  # as a timer that fires while the episode arrives
        await pilot.pause()
        assert "guess" in widget_text(pilot, STEPS)


async def test_hostile_texts_are_shown_and_copied_safe_unless_copied_raw() -> None:
    data = HOSTILE.encode("utf-8", "surrogatepass")
    async with episode_pilot(session_with_episode(hostile_episode(1), data)) as pilot:
        for view in ("t", "w", "d"):
            await pilot.press(view)
            await wait_until(pilot, lambda: "␛" in widget_text(pilot, f"#{focused_id(pilot)}"))
            assert not any(has_unsafe_chars(widget_text(pilot, selector)) for selector in ALL_WIDGETS)
            await pilot.press("X")
            await wait_until(pilot, lambda: any(hex in screen_text(pilot.app) for hex in ("1b 5b 32", "c2 9b 32")))
            await pilot.press("escape")
        await show_episode(pilot, session_with_episode(hostile_episode(1), b'{"a": "\\u001b", "b":\x1b[2J'))
        for view in ("t", "w", "d"):
            pilot.app.copy_to_clipboard("")
            await pilot.press(view, "y")
            await wait_until(pilot, lambda: "sent" in toast_text(pilot) and "␛" in pilot.app.clipboard)
            assert not has_unsafe_chars(pilot.app.clipboard)
        await pilot.press("Y")
        await wait_until(pilot, lambda: "unchanged" in toast_text(pilot))
        assert pilot.app.clipboard == '{"a": "\\u001b", "b":\x1b[2J'
        await pilot.press("t", "Y")
        await wait_until(pilot, lambda: "■" in pilot.app.clipboard)
        assert "\x1b]52;c" in pilot.app.clipboard


async def test_a_copy_is_the_path_or_else_the_id_and_a_long_one_is_truncated_and_says_so() -> None:
    session = session_with_episode(episode(1))
    session.fake_library.folder = Path("/srv/\x1b[2J", "runs" * 20)
    async with episode_pilot(session, size=(80, 24)) as pilot:
        await wait_for_widget_text(pilot, HEADING, episode_id(1) + " · …", f"/{episode_id(1)}.json")
        await pilot.resize_terminal(120, 40)
        await wait_for_widget_text(pilot, HEADING, episode_id(1) + " · …", f"/{episode_id(1)}.json")
        await pilot.press("C")
        await wait_until(pilot, lambda: pilot.app.clipboard.endswith(f"/{episode_id(1)}.json"))
        assert pilot.app.clipboard.startswith("/srv/␛[2J/runs")
        long = json.dumps({"a": "x" * 2 * MAX_CLIPBOARD_BYTES}).encode()
        await show_episode(pilot, session_with_episode(episode(1), long))
        await pilot.press("C")
        await wait_until(pilot, lambda: pilot.app.clipboard == episode_id(1))
        await pilot.press("d")
        await wait_for_widget_text(pilot, JSON, "xxx")
        await pilot.press("y")
        await wait_until(pilot, lambda: "the first 100.0 KiB of the view (200.0 KiB)" in toast_text(pilot))
        assert len(pilot.app.clipboard) == MAX_CLIPBOARD_BYTES


async def test_the_trace_shows_and_copies_the_path_of_its_perfetto_trace(tmp_path: Path) -> None:
    loaded = episode(1, spans=[span(1, name="episode")])
    trace = tmp_path / "traces" / f"{loaded.batch_id}.pftrace"
    trace.parent.mkdir()
    trace.touch()
    session = session_with_episode(loaded)
    session.fake_library.folder = tmp_path / "runs" / str(loaded.batch_id)
    async with episode_pilot(session, size=(200, 50)) as pilot:
        await pilot.press("w")
        await wait_for_widget_text(pilot, HEADING, str(trace)[-60:])
        await pilot.press("C")
        await wait_until(pilot, lambda: pilot.app.clipboard == str(trace))
        await pilot.app.screen.run_action("write_trace")
        await wait_until(pilot, lambda: "trace of the batch" in toast_text(pilot))
        assert not trace.stat().st_size


async def test_a_trace_that_does_not_exist_is_written_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extreme = msgspec.structs.replace(span(3), start_ns=-(2**80), end_ns=2**80)
    spans = [span(1, end=9_000, name="episode"), span(2, parent=1, start=1_000, end=2_000), extreme]
    async with episode_pilot(session_with_episode(episode(1, spans=spans))) as pilot:
        await pilot.press("w", "C")
        await wait_until(pilot, lambda: "no trace file here" in toast_text(pilot))
        await pilot.app.screen.run_action("write_trace")
        await wait_until(pilot, lambda: "ui.perfetto.dev" in toast_text(pilot))
    written = tmp_path / f"{episode_id(1)}.pftrace"
    assert [each.name for each in all_slices(written)] == ["episode", "step"]
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_trace_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    extreme, unencodable = msgspec.structs.replace(span(1), end_ns=2**80), span(2, end=9, name="\ud800")
    for each, id in ((extreme, episode_id(1)), (unencodable, episode_id(1)), (span(3, end=9), "../other/name")):
        with pytest.raises(ExportError):
            write_trace([each], id, tmp_path)
    assert [*tmp_path.iterdir()] == []


def are_session(evaluation: dict[str, Any]) -> FakeSession:
    """Return a files session with one episode of ARE."""
    record = are_record(evaluation, episode_id=episode_id(1))
    session = session_with_episode(episode_from_record(record), encode(record))
    session.fake_library.stored = [episode_row(record)]
    return session


async def test_the_evaluation_is_a_view_and_unscored_episodes_and_failed_judges_are_marked() -> None:
    async with episode_pilot(are_session(MISSED)) as pilot:
        await wait_for_widget_text(pilot, "#tabs", "○ Evaluation v")
        await pilot.press("v")
        await wait_for_widget_text(pilot, "#evaluation", "✗ not solved", "missed oracle events: 1 of 1", "event log")
        assert focused_id(pilot) == "evaluation"
        await pilot.press("y")
        await wait_until(pilot, lambda: "no forward_email was called" in pilot.app.clipboard)
        for evaluation, heading, *shown in (
            (IDLE, "unscored: idle play can succeed", "✓ success", "unscored: without an oracle event"),
            (
                JUDGE_FAILED,
                "✗ evaluation: The validation of scenario_tutorial has no verdict",
                "? not rated: the judge failed",
                "KeyError: 'greg_email'",
            ),
        ):
            await show_episode(pilot, are_session(evaluation))
            await wait_for_widget_text(pilot, HEADING, heading)
            await pilot.press("v")
            await wait_for_widget_text(pilot, "#evaluation", *shown)

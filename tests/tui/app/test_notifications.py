"""Notifications of the end of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from textual.geometry import Region
from textual.widgets._toast import Toast

from agentgym_tui.app import MAX_TOAST_ROWS, Console, short_toast
from agentgym_tui.config import Notify, Settings
from agentgym_tui.notifications import OSC_9, OSC_777, Notifier, desktop_sequence, ended_text, limits_text
from agentgym_tui.presenters.cells import display_width
from agentgym_tui.safe_text import has_unsafe_chars, sanitize_message
from agentgym_tui.services import MAX_MESSAGES, announce, messages, toast
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList
from tests.support.console.fake_session import FakeSession, busy_session, session_with_messages
from tests.support.console.live_items import START
from tests.support.console.pilot import (
    SIZE,
    by_name,
    console_app,
    console_pilot,
    screen_text,
    toast_text,
    wait_for_text,
    wait_until,
)
from tests.support.console.samples import (
    HOSTILE,
    batch_completed,
    batch_id,
    batch_state,
    busy_store,
    durable,
    episode,
    node_health,
    node_list,
)


def store_with_battery() -> RunStore:
    store = busy_store()
    states = [batch_state(n, "running" if n == 0 else "queued", battery_id="battery") for n in range(2)]
    store.apply_list(node_list(*states))
    return store


async def test_the_end_of_a_batch_is_shown_safely_and_does_not_hide_the_reply_to_a_command() -> None:
    session = busy_session()
    session.store.apply_list(node_list(*(batch_state(i, "running", env=f"env{i}") for i in range(2))))
    app = console_app(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_until(pilot, lambda: batch_id(1) in app._notifier._active_ids, "a check of the batches")
        toast(pilot.app, "exported to a file")
        for n in range(2):
            states = [batch_state(i, ["running", "completed"][i <= n], env=f"env{i}") for i in range(2)]
            session.store.apply_list(node_list(*states))
            await wait_until(pilot, lambda n=n: f"env{n} completed" in toast_text(pilot))  # type: ignore[misc]
            assert toast_text(pilot).startswith("exported to a file")
            assert toast_text(pilot).count("completed") == 1
        toast(pilot.app, "the next reply")
        await wait_until(pilot, lambda: toast_text(pilot) == "the next reply")
        session.store.apply_list(node_list(batch_state(2, "running", env=HOSTILE)))
        await wait_until(pilot, lambda: batch_id(2) in app._notifier._active_ids, "a check of the batches")
        session.store.apply_list(node_list(batch_state(2, "completed", env=HOSTILE)))
        await wait_until(pilot, lambda: "␛" in toast_text(pilot) and " completed" in toast_text(pilot), "the toast")
        assert not has_unsafe_chars(screen_text(pilot.app) + toast_text(pilot).replace("\n", ""))


@pytest.mark.parametrize(
    ("notify", "expected"), [(Notify(), ["toast", "toast"]), (Notify(False, True, True), ["bell", OSC_9])]
)
async def test_notifications_follow_the_settings_and_bell_and_desktop_wait_for_the_battery(
    notify: Notify, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = FakeSession(store_with_battery())
    app = console_app(session, Settings(notify=notify))
    written: list[str] = []
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: bool(app._notifier._active_ids), "a check of the batches")
        assert app._driver is not None
        monkeypatch.setattr(app, "bell", lambda: written.append("bell"))
        monkeypatch.setattr(app, "notify", lambda *_, **__: written.append("toast"))
        monkeypatch.setattr(app._driver, "write", lambda text: written.append(text) if "\x1b]" in text else None)
        for statuses in (("completed", "running"), ("completed", "completed")):
            states = [batch_state(n, status, battery_id="battery") for n, status in enumerate(statuses)]
            session.store.apply_list(node_list(*states))
            await wait_until(pilot, lambda: app._draw_timer is None, "a redraw")
        assert written == expected


async def test_a_batch_that_cannot_start_is_reported_with_its_reason() -> None:
    session = busy_session()
    session.store.apply_list(node_list(batch_state(0, "queued", env="Maze")))
    app = console_app(session)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await wait_until(pilot, lambda: batch_id(0) in app._notifier._queued_ids, "a check of the queue")
        interrupted = batch_state(0, "interrupted", env="Maze", interruption=f"http://me:hunter22@h:1: {HOSTILE}")
        session.store.apply_list(node_list(interrupted))
        await wait_until(pilot, lambda: "Maze interrupted" in toast_text(pilot), "the toast")
        assert "hunter22" not in screen_text(pilot.app) + toast_text(pilot)
        assert not has_unsafe_chars(screen_text(pilot.app))
        app.clear_notifications()  # the long toast covers the row of the batch
        await wait_for_text(pilot, "Maze · interrupted: http://***@h:1")
        assert "hunter22" not in screen_text(pilot.app)


async def test_the_key_of_the_summary_is_shown_after_a_long_reason() -> None:
    session = busy_session()
    session.store.apply_list(node_list(batch_state(0, "running", env="Maze")))
    app = console_app(session)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await wait_until(pilot, lambda: batch_id(0) in app._notifier._active_ids, "a check of the batches")
        reason = f"{'/home/ada/experiments' * 20}/state is full"
        session.store.apply_list(node_list(batch_state(0, "interrupted", env="Maze", interruption=reason)))
        await wait_until(pilot, lambda: "Maze interrupted" in toast_text(pilot), "the toast")
        assert toast_text(pilot).endswith("/state is full M shows the summary  ! shows all")


async def test_batches_that_end_together_are_announced_in_one_toast(monkeypatch: pytest.MonkeyPatch) -> None:
    session = busy_session()
    app, texts = console_app(session), list[str]()
    async with app.run_test(size=SIZE) as pilot:
        for status in ("running", "completed"):
            await wait_until(pilot, lambda: app._draw_timer is None, "a redraw")
            monkeypatch.setattr(app, "notify", lambda text, **_: texts.append(text))
            session.store.apply_list(
                node_list(*(batch_state(n + 1, status, env=f"Maze {n}") for n in reversed(range(50))))
            )
        await wait_until(pilot, lambda: bool(texts), "the toast")
        assert texts[0].split("\n") == [
            *(f"Maze {n} completed" for n in range(3)),
            "and 47 more",
            "M shows the summary",
        ]
        await wait_until(pilot, lambda: app._draw_timer is None, "a redraw")
    assert len(texts) == 1


def test_desktop_notifications_have_a_fixed_text() -> None:
    assert desktop_sequence({"TERM": "xterm-256color"}) == OSC_9 == "\x1b]9;AgentGym: a batch has ended\x07"
    assert desktop_sequence({"TERM": "rxvt-unicode"}) == desktop_sequence({"VTE_VERSION": "7000"}) == OSC_777


def test_a_batch_that_ended_long_ago_or_twice_is_not_reported() -> None:
    notifier, store = Notifier(), store_with_battery()
    assert list(notifier.ended(store, START)) == []
    store.apply_events([replace(durable(batch_completed(0)), time=START)])
    assert list(notifier.ended(store, START + timedelta(hours=1))) == []
    new_notifier = Notifier()
    store = store_with_battery()
    assert list(new_notifier.ended(store, START)) == []
    store.apply_events([replace(durable(batch_completed(0)), time=START)])
    [batch_end] = new_notifier.ended(store, START)
    assert batch_end.batch.batch_id == batch_id(0)
    assert list(new_notifier.ended(store, START)) == []


@pytest.mark.parametrize("queued", [True, False])
def test_a_batch_that_starts_and_ends_between_two_checks_is_reported_once(queued: bool) -> None:
    notifier, store = Notifier(), RunStore()
    if queued:
        store.apply_list(node_list(batch_state(0, "queued")))
    assert list(notifier.ended(store, START)) == []
    store.apply_list(node_list(batch_state(0, "completed")))
    assert list(notifier.ended(store, START)) == []
    store.apply_events([replace(durable(batch_completed(0)), time=START)])
    assert [each.batch.batch_id for each in notifier.ended(store, START + timedelta(seconds=2))] == [batch_id(0)]
    assert list(notifier.ended(store, START + timedelta(seconds=3))) == []
    store.apply_events([replace(durable(batch_completed(1)), time=START)])
    assert list(notifier.ended(store, START + timedelta(seconds=20))) == []


def test_a_batch_that_was_seen_running_is_not_reported_again_when_its_event_arrives() -> None:
    notifier, store = Notifier(), RunStore()
    store.apply_list(node_list(batch_state(0, "running")))
    assert list(notifier.ended(store, START)) == []
    store.apply_list(node_list(batch_state(0, "completed")))
    assert len(list(notifier.ended(store, START))) == 1
    store.apply_events([replace(durable(batch_completed(0)), time=START)])
    assert list(notifier.ended(store, START)) == []


def test_the_end_of_a_batch_names_the_limit_that_stopped_its_episodes() -> None:
    episodes = [episode(n, 15, outcome="truncated") for n in range(2)]
    limits = limits_text([*episodes, episode(3, outcome="timeout")])
    expected = "Maze completed, 2 stopped at the limit of 15 rounds, 1 timeout"
    assert ended_text(BatchRun("b", env="Maze", status="completed"), limits) == expected
    assert limits_text([*episodes, episode(5, 9, outcome="truncated")]) == "3 stopped at their limits"
    assert limits_text([episode(1)]) == ""


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"n_rated": 6, "n_success": 6, "n_errors": 6}, "Maze completed, success 6 of 6, 6 errors"),
        ({"n_rated": 0, "n_errors": 1}, "Maze completed, 1 error"),
        ({"n_rated": 2, "n_success": 1}, "Maze completed, success 1 of 2"),
        ({}, "Maze completed"),
    ],
)
def test_errors_are_counted_apart(counts: dict[str, Any], expected: str) -> None:
    assert ended_text(BatchRun("b", env="Maze", status="completed", **counts)) == expected


def rows_that_are_read(app: Console) -> Iterator[Region]:
    """Yield the lines above the keys, the keys, the selected row of each list, and the last line of each text."""
    for bar in app.screen.query("#progress, KeyBar"):
        yield bar.region
    for view in app.screen.query(LineList):
        index = view.cursor if view.is_highlighted(view.cursor) else len(view.source) - 1
        yield Region(0, view.N_HEADER + index, view.region.width, 1).translate(view.region.offset - view.scroll_offset)


async def test_a_reply_at_the_top_right_covers_nothing_that_is_read() -> None:
    app = console_app(session_with_messages("agentgym.a", "orders.eu"))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        for width, height in ((80, 24), (120, 40)):
            await pilot.resize_terminal(width, height)
            for keys in ("1", "2", "2 f", "2 escape enter", "3", "5", "6", "7", "7 t"):
                await pilot.press("1", *keys.split())
                await wait_until(pilot, lambda: len(app.screen.query(KeyBar)) == 1, "the screen")
                toast(app, "word " * 99)  # as many rows as a toast may have
                await wait_until(
                    pilot,
                    lambda: [each.region.right for each in app.screen.query(Toast)] == [width],  # noqa: B023
                    "the toast",
                )
                [region] = [each.region for each in app.screen.query(Toast)]
                assert region.y == 0 and region.height == MAX_TOAST_ROWS
                assert [row for row in rows_that_are_read(app) if row.overlaps(region)] == [], (width, keys)


@pytest.mark.parametrize("width", [20, 57, 77, 117])
@pytest.mark.parametrize("text", ["a word" + " or two words" * 60, "x" * 900, "one\ntwo\nthree\nfour", "好" * 300])
def test_a_long_message_is_cut_before_its_end_and_names_the_key_that_shows_all(text: str, width: int) -> None:
    shown = short_toast(text, width, "!")
    rows = shown.split("\n")
    assert len(rows) == MAX_TOAST_ROWS
    end, key, _ = rows[-1].removeprefix("…").rpartition("  ! shows all")
    assert key and end and text.replace("\n", " ").endswith(end)
    assert max(map(display_width, rows)) <= width
    assert text.startswith(rows[0])


@pytest.mark.parametrize("text", ["", "Maze completed", "one\ntwo\nthree"])
def test_a_short_message_is_shown_as_it_is(text: str) -> None:
    assert short_toast(text, 77, "!") == text


async def test_a_long_message_covers_few_rows_and_messages_are_kept_newest_first_up_to_a_limit() -> None:
    words = " ".join(f"word-{n}" for n in range(120))
    async with console_pilot(busy_session(), (80, 24)) as pilot:
        await wait_for_text(pilot, "Transcript")
        await pilot.press("exclamation_mark")
        await wait_for_text(pilot, "No messages yet")
        await pilot.press("escape")
        toast(pilot.app, sanitize_message(f"{HOSTILE}{words}", 2_000), failed=True)
        await wait_for_text(pilot, "! shows all")
        await wait_until(pilot, lambda: pilot.app.screen.query_one(Toast).region.height == MAX_TOAST_ROWS, "its layout")
        assert "word-100" not in toast_text(pilot) and "word-119" in toast_text(pilot)
        await pilot.press("exclamation_mark")
        await wait_for_text(pilot, "╭─ Messages", "word-0")
        assert not has_unsafe_chars(screen_text(pilot.app).replace("\n", "")) and "\t" not in screen_text(pilot.app)
        await pilot.press("G")
        await wait_for_text(pilot, "word-119")
        for n in range(MAX_MESSAGES):
            toast(pilot.app, f"reply {n}")
        announce(pilot.app, "Maze completed")
        kept = messages(pilot.app)
        assert [kept[0].text, kept[1].text, kept[-1].text] == ["Maze completed", f"reply {MAX_MESSAGES - 1}", "reply 1"]
        assert len(kept) == MAX_MESSAGES


async def test_the_earlier_events_that_a_new_broker_lacks_are_reported_once_and_sent_on_request() -> None:
    session = busy_session()
    async with console_pilot(session, (80, 24)) as pilot:
        await pilot.press(*by_name("node.history"))
        await wait_until(pilot, lambda: "no earlier event is left to send" in toast_text(pilot), "why not")
        session.store.apply_health(node_health(egress="nats://broker:4222", n_held=1204))
        await wait_until(
            pilot, lambda: "1,204 earlier events were not sent to nats://broker:4222" in toast_text(pilot), "it"
        )
        session.store.apply_health(node_health(egress="nats://broker:4222", n_held=1205))
        await pilot.press("escape", *by_name("node.history"))
        await wait_for_text(pilot, "1,205 events ended before", "nats://broker:4222")
        await pilot.press("y")
        await wait_until(
            pilot, lambda: "1,204 earlier events are being sent to nats://broker:4222" in toast_text(pilot), "n"
        )
        assert session.fake_control.n_sent_histories == 1
        assert sum("were not sent" in message.text for message in messages(pilot.app)) == 1
        session.store.apply_health(node_health(egress="nats://broker:4222"))
        await pilot.press("ctrl+p", *"earlier")
        await wait_for_text(pilot, "Send earlier   no earlier event is left to send")

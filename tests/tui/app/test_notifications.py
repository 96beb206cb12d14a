"""The end of a batch, and how it is told."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from agentgym_tui.app.notifications import OSC_9, OSC_777, BatchEndDetector, desktop_sequence
from agentgym_tui.config.settings import Notify, Settings
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.run_store import RunStore
from tests.support.console.fake_session import FakeSession, busy_session
from tests.support.console.live_items import START
from tests.support.console.pilot import SIZE, console_app, screen_text, wait_for_text, wait_until
from tests.support.console.samples import (
    HOSTILE,
    batch_completed,
    batch_id,
    batch_state,
    busy_store,
    durable,
    node_list,
)


def playing() -> RunStore:
    store = busy_store()
    states = [batch_state(n, "running" if n == 0 else "queued", battery_id="battery") for n in range(2)]
    store.apply_list(node_list(*states))
    return store


async def test_the_end_of_a_batch_is_told() -> None:
    session = busy_session()
    session.store.apply_list(node_list(batch_state(0, "running", env=HOSTILE)))
    async with console_app(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        session.store.apply_list(node_list(batch_state(0, "completed", env=HOSTILE)))
        await wait_for_text(pilot, " completed")
        assert not has_unsafe_chars(screen_text(pilot.app))


@pytest.mark.parametrize(
    ("notify", "told"), [(Notify(), ["toast", "toast"]), (Notify(False, True, True), ["bell", OSC_9])]
)
async def test_bell_and_desktop_are_for_those_who_want_them_and_wait_for_the_whole_battery(
    notify: Notify, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = FakeSession(playing())
    app = console_app(session, Settings(notify=notify))
    written: list[str] = []
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        assert app._driver is not None
        monkeypatch.setattr(app, "bell", lambda: written.append("bell"))
        monkeypatch.setattr(app, "notify", lambda *_, **__: written.append("toast"))
        monkeypatch.setattr(app._driver, "write", lambda text: written.append(text) if "\x1b]" in text else None)
        for statuses in (("completed", "running"), ("completed", "completed")):
            states = [batch_state(n, status, battery_id="battery") for n, status in enumerate(statuses)]
            session.store.apply_list(node_list(*states))
            await wait_until(pilot, lambda: app._draw_timer is None, "a drawing")
        assert written == told


def test_what_the_terminal_is_told_is_of_our_own_words() -> None:
    assert desktop_sequence({"TERM": "xterm-256color"}) == OSC_9 == "\x1b]9;AgentGym: a batch has ended\x07"
    assert desktop_sequence({"TERM": "rxvt-unicode"}) == desktop_sequence({"VTE_VERSION": "7000"}) == OSC_777


def test_a_batch_that_was_over_long_ago_is_history() -> None:
    ends, store = BatchEndDetector(), playing()
    assert list(ends.detect(store, START)) == []
    store.apply_events([replace(durable(batch_completed(0)), time=START)])
    assert list(ends.detect(store, START + timedelta(hours=1))) == []
    other = BatchEndDetector()
    store = playing()
    assert list(other.detect(store, START)) == []
    store.apply_events([replace(durable(batch_completed(0)), time=START)])
    [ended] = other.detect(store, START)
    assert ended.batch.batch_id == batch_id(0)
    assert list(other.detect(store, START)) == []

"""The live screen: which episode it follows, what it shows, and its keys."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widget import Widget

from agentgym_tui.app import Console
from agentgym_tui.config import UiState
from agentgym_tui.presenters.live import ENV_COLUMNS
from agentgym_tui.screens.base import RunControl
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.live import LIVE_PANES, EpisodePicker, LivePane, LivePanes, LiveScreen
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.lists import LineList, Table
from runner.events.live import LiveAction, ModelMetrics
from runner.subscribe.messages import Notice
from runner.types import Phases
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, ended_session
from tests.support.console.pilot import (
    SIZE,
    SMALL,
    console_app,
    console_pilot,
    screen_text,
    wait_for_no_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import (
    HOSTILE,
    PROFILE,
    START,
    FakeClock,
    batch_id,
    batch_state,
    busy_store,
    completed,
    durable,
    empty_store,
    ended,
    env_health,
    episode_id,
    episode_items,
    heartbeat,
    hostile_episode,
    live,
    model_health,
    node_health,
    node_list,
    progress,
    row,
    started,
    timestep,
    token,
)

SIZES = [SMALL, SIZE, (200, 50)]


def list_view(pilot: Pilot[Any], name: str) -> LineList:
    return pilot.app.screen.query_one(f"#{name}", LineList)


def live_screen(pilot: Pilot[Any]) -> LiveScreen:
    assert isinstance(pilot.app.screen, LiveScreen)
    return pilot.app.screen


# Drawing.


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """Count the calls of functions and classes of the live screen."""
    calls: Counter[str] = Counter()

    def count(place: str, name: str) -> None:
        called = getattr(import_module(place), name)

        def counted(*args: object, **options: object) -> object:
            calls[name] += 1
            return called(*args, **options)

        monkeypatch.setattr(f"{place}.{name}", counted)

    for each in names:
        module, _, name = each.partition(".")
        count(f"agentgym_tui.screens.{module}", name)
    return calls


async def test_a_redraw_makes_no_titles_of_hidden_panes_but_when_they_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    titles = ("transcript_title", "trace_title", "rewards_title")
    calls = count_calls(monkeypatch, "live.status_lines", *(f"live.{name}" for name in titles))
    session = busy_session()
    async with console_app(session).run_test(size=SMALL) as pilot:
        await wait_for_text(pilot, "task 3")
        for view in ("trace", "rewards", "transcript"):
            await pilot.press("v")
            await wait_until(pilot, lambda: list_view(pilot, view).has_focus and bool(list_view(pilot, view).size))  # noqa: B023
        await pilot.pause()
        calls.clear()
        live_screen(pilot).draw(session.store)
        assert calls == {"status_lines": 1, "transcript_title": 1}
        before = widget_text(pilot, "#rewards-pane PaneTitle")
        list_view(pilot, "environments").focus()
        await pilot.press("G")
        env = list_view(pilot, "environments").key
        assert env and env not in before
        await pilot.press("v", "v")
        await wait_until(pilot, lambda: env in widget_text(pilot, "#rewards-pane PaneTitle"), "the new title")
        assert env in screen_text(pilot.app)


async def test_what_has_changed_is_drawn_and_nothing_else() -> None:
    session, ui_state = busy_session(), UiState()
    names = ("environments", "steps", "transcript", "trace", "rewards")
    async with console_app(session, ui_state=ui_state).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3", "Rewards · Wordle", "success 67% of last 3")
        sources: list[object] = []

        def keeps_sources() -> bool:
            before = list(sources)
            live_screen(pilot).draw(session.store)
            sources[:] = (list_view(pilot, name).source for name in names)
            return len(before) == len(sources) and all(a is b for a, b in zip(before, sources, strict=True))

        await wait_until(pilot, keeps_sources, "a redraw that changes nothing")  # the cursor may still move to the end
        points = session.store.rewards["Wordle"]
        points[0] = points[0]._replace(success=not points[0].success)
        session.store.version += 1
        live_screen(pilot).draw(session.store)
        await wait_for_text(pilot, f"success {'100%' if points[0].success else '33%'} of last 3")
        episode = session.store.episodes[episode_id(3)]
        first, second, *others = episode.steps
        stored = [first, replace(second, action=LiveAction("another")), *others]
        session.store.merge_episode(replace(episode, steps=stored))
        await wait_for_text(pilot, "another")
        await pilot.press("j")
        await wait_for_text(pilot, "Rewards · TextCraft", "no scored episodes yet")
        await pilot.press("G")
        await wait_for_text(pilot, "WebShop: not installed")
        other = Table(ENV_COLUMNS, can_sort=True, id="other")
        await pilot.app.screen.query_one(LivePanes).mount(other)
        other.action_sort()
        await pilot.pause()
        assert ui_state.sorting == {}


# The watched episode.


def test_the_newest_running_episode_is_watched_until_it_ends() -> None:
    store, picker = empty_store(), EpisodePicker()
    assert picker.select_episode(store, following=True) is None
    store.apply_events([live(started(0), timestep(0, 0))])
    picked = picker.select_episode(store, following=True)
    assert picked is not None
    store.apply_events([live(started(1))])
    assert picker.select_episode(store, following=True) is picked
    store.apply_events([live(ended(0, 2))])
    assert picker.select_episode(store, following=False) is picked
    picked = picker.select_episode(store, following=True)
    assert picked is not None
    assert picked.episode_id == episode_id(1)
    store.apply_events([live(ended(1, 1))])
    assert picker.select_episode(store, following=True) is picked


def test_a_batch_started_here_is_watched_as_soon_as_it_runs() -> None:
    store, picker = empty_store(), EpisodePicker()
    store.apply_events([live(started(0))])
    picker.select_episode(store, following=True)
    picker.watch_batch(batch_id(7))
    assert picker.select_episode(store, following=False) is store.episodes[episode_id(0)]
    store.apply_events([live(started(1, batch_id="other", battery_id=batch_id(7)))])
    assert picker.select_episode(store, following=False) is store.episodes[episode_id(1)]


def test_neighbors_cycle_through_the_running_episodes() -> None:
    store, picker = empty_store(), EpisodePicker()
    assert picker.select_neighbor(store, 1) is None
    store.apply_events([live(started(0))])
    picker.select_episode(store, following=True)
    assert picker.select_neighbor(store, 1) is None
    store.apply_events([live(started(1), started(2))])
    neighbors = [picker.select_neighbor(store, by) for by in (1, 1, 1, -1)]
    assert [episode.episode_id for episode in neighbors if episode] == [episode_id(n) for n in (1, 2, 0, 2)]


def test_episodes_of_the_same_batch_are_preferred_and_lost_ones_avoided() -> None:
    store, picker = empty_store(), EpisodePicker()
    store.apply_events([live(*episode_items(0), started(1), started(2, batch_id=batch_id(9)))])
    picker.episode_id = episode_id(0)
    picked = picker.select_episode(store, following=True)
    assert picked is store.episodes[episode_id(1)]
    assert picker.select_episode(store, following=False) is picked
    for episode in store.episodes.values():
        episode.node_lost = episode.running
    assert picker.select_episode(store, following=True) is picked


def test_the_last_episode_of_an_ended_batch_is_watched() -> None:
    store, picker = empty_store(), EpisodePicker()
    store.apply_events([live(*episode_items(0), *episode_items(1), *episode_items(2))])
    picker.episode_id = episode_id(0)  # the others ended between two selections
    assert picker.select_episode(store, following=False) is store.episodes[episode_id(0)]
    assert picker.select_episode(store, following=True) is store.episodes[episode_id(2)]


def test_the_newest_episode_is_watched_after_a_battery_whose_last_batches_were_short() -> None:
    store, picker = empty_store(), EpisodePicker()
    first = episode_items(0, battery_id="battery")
    store.apply_events([live(*first)])
    picker.select_episode(store, following=True)
    last = episode_items(1, batch_id=batch_id(2), battery_id="battery")
    store.apply_events([live(*last)])  # it started and ended between two selections
    assert picker.select_episode(store, following=True) is store.episodes[episode_id(1)]


# The panes.


async def test_the_running_episode_is_followed_and_its_views_are_switched_and_zoomed() -> None:
    session = busy_session()
    async with console_app(session).run_test(size=SMALL, notifications=True) as pilot:
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await wait_for_text(pilot, "task 3", "following", "the word may be", "3/10", "time left 3:21", "cpu 12%")
            for name, title in (("trace", "Trace"), ("rewards", "Rewards"), ("transcript", "Transcript")):
                await pilot.press("v")
                await wait_until(pilot, lambda name=name: list_view(pilot, name).has_focus, name)  # type: ignore[misc]
                await wait_for_text(pilot, title)
                await pilot.press("z")
                await wait_for_no_text(pilot, "Environments")
                await wait_for_text(pilot, title)
                pane = pilot.app.screen.query_one(f"#{name}-pane", LivePane)
                assert pane.size.height == size[1] - (3 if size[0] == 200 else 4)
                await pilot.press("z")
                await wait_for_text(pilot, "Environments")
        session.store.apply_events([live(timestep(3, 2, seq=4, chats=[], observation=[]), token(3, 5, "and now ", 3))])
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await wait_for_text(pilot, "round 3", "and now")
        session.store.apply_events([live(ended(3, 6), started(4), timestep(4, 0))])
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await wait_for_text(pilot, "task 4", "round 1")
            assert "not following" not in screen_text(pilot.app)


@pytest.mark.parametrize(("before", "after"), [(SIZE, SMALL), (SMALL, SIZE)])
@pytest.mark.parametrize("make_session", [busy_session, ended_session])
async def test_after_a_resize_all_looks_as_if_the_console_had_started_there(
    make_session: Callable[[], FakeSession], before: tuple[int, int], after: tuple[int, int]
) -> None:
    async with console_app(make_session()).run_test(size=after) as pilot:
        await wait_for_text(pilot, "▌Environments")
        await pilot.pause()
        expected = screen_text(pilot.app)
    async with console_app(make_session()).run_test(size=before) as pilot:
        await wait_for_text(pilot, "▌Environments")
        await pilot.resize_terminal(*after)
        await wait_until(pilot, lambda: screen_text(pilot.app) == expected, expected)
        await pilot.resize_terminal(*before)
        await pilot.press("5")
        await wait_for_no_text(pilot, "Environments")
        await pilot.resize_terminal(*after)
        await pilot.press("1")
        await wait_until(pilot, lambda: screen_text(pilot.app) == expected, expected)


async def test_every_pane_is_reached_opens_the_episode_and_stays_visible_when_the_terminal_shrinks() -> None:
    async with console_app(busy_session()).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "▌Environments", "task 3")
        for title in ("▌Wordle", "▌Trace", "▌Transcript", "▌Rewards", "▌Environments"):
            await pilot.press("tab")
            await wait_for_text(pilot, title)
        screen = live_screen(pilot)

        async def leave_the_episode() -> None:
            await wait_until(pilot, lambda: isinstance(pilot.app.screen, EpisodeScreen), "the episode")
            await pilot.press("escape")
            await wait_until(pilot, lambda: pilot.app.screen is screen, "back")

        screen.action_open()
        screen.action_open()  # opens it only once
        await leave_the_episode()
        await pilot.press("tab", "enter")
        await leave_the_episode()
        await pilot.click("#steps", offset=(10, 2), times=2)
        await leave_the_episode()
        for name in ("transcript", "trace", "rewards"):
            await pilot.resize_terminal(200, 50)
            await wait_until(pilot, lambda: "-narrow" not in screen.classes and bool(list_view(pilot, name).size))  # noqa: B023
            list_view(pilot, name).focus()
            await wait_until(pilot, lambda: list_view(pilot, name).has_focus, "the focus")  # noqa: B023
            await pilot.resize_terminal(*SMALL)
            await wait_until(pilot, lambda: "-narrow" in screen.classes, "the narrow layout")
            await pilot.pause()
            assert list_view(pilot, name).has_focus
            await wait_until(pilot, lambda: list_view(pilot, name).region.height > 0, "the pane")  # noqa: B023


async def test_moving_up_and_scrolling_in_the_transcript_end_following() -> None:
    session = busy_session()
    async with console_app(session).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3", "following")
        await pilot.press("tab", "k")
        await wait_for_text(pilot, "not following (G)", "Transcript · step 1")
        session.store.apply_events([live(ended(3, 4), started(4), timestep(4, 0))])
        await wait_for_text(pilot, "✓ success", "task 3")
        assert "task 4" not in screen_text(pilot.app)
        await pilot.press("G")
        await wait_for_text(pilot, "task 4", "Transcript · step 0")
        assert "not following" not in screen_text(pilot.app)
        long = "\n".join(f"line {n}" for n in range(100))
        session.store.apply_events([live(timestep(4, 1, observation=[{"role": "user", "content": long}]))])
        await wait_for_text(pilot, "line 99")
        await pilot.press("tab", "tab", "k", "k")
        await wait_for_text(pilot, "not following (G)")
        await wait_for_no_text(pilot, "line 99")
        session.store.apply_events([live(timestep(4, 2))])
        await wait_for_text(pilot, "guess 2", "Transcript · step 1")
        await pilot.press("G")
        await wait_for_text(pilot, "Transcript · step 2")


async def test_an_empty_console_shows_first_keys_until_its_first_episode() -> None:
    session = empty_session()
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Nothing is running yet")
        refreshed = list[Widget]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Widget, "refresh", lambda self, *args, **kwargs: refreshed.append(self))
            live_screen(pilot).draw(session.store)
        assert refreshed == [], "a redraw that changes nothing repaints nothing"
        for size in ((200, 50), SMALL):
            await pilot.resize_terminal(*size)
            await wait_for_text(pilot, "Nothing is running yet", "choose what to run and how", "not installed", "→ ")
            await wait_for_text(pilot, "▌Environments", "Welcome")
            await pilot.press("z")
            await wait_for_no_text(pilot, "Welcome")
            await pilot.press("z", "v")
            await wait_for_text(pilot, "▌Environments", "Welcome")
            await pilot.press("tab", "z")
            await wait_for_no_text(pilot, "Environments")
            await wait_for_text(pilot, "▌Welcome")
            await pilot.press("z", "shift+tab")
        await pilot.app.screen.run_action("open")
        await wait_for_text(pilot, "no episode selected")
        session.store.apply_events([Notice(kind="gap", text="a stream was deleted", count=3)])
        await wait_for_text(pilot, "a stream was deleted (3)")
        await pilot.press("tab", "z")
        await wait_for_no_text(pilot, "Environments")
        assert [pane.id for pane in pilot.app.screen.query(LivePane)] == ["environments-pane", "welcome-pane"]
        session.store.apply_events([live(started(0), timestep(0, 0))])
        await wait_for_text(pilot, "Environments", "▌Wordle task 0", "guess 0", "following", "Transcript · step 0")
        assert "Welcome" not in screen_text(pilot.app)
        assert len(pilot.app.screen.query(LivePane)) == len([*LIVE_PANES])


async def test_an_idle_node_shows_its_last_episode_and_how_to_begin() -> None:
    session = empty_session()
    session.store.apply_stored([row(2), row(1)])
    session.store.apply_stored([row(0)])
    async with console_pilot(session, SMALL) as pilot:
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await wait_for_text(pilot, "last episode · Wordle task 2", "observation 3", "2 lists 3 stored episodes")
            await wait_for_text(pilot, "r  run the selected", "R  choose what", "b  run all", "no model")
        await pilot.press("tab", "enter")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, EpisodeScreen), "the episode")
        await pilot.press("escape")
        session.store.apply_list(node_list(batch_state(0, "queued")))
        await wait_for_no_text(pilot, "Welcome")
        await wait_for_text(pilot, "last episode · Wordle task 2")
        session.store.apply_events([live(started(9), timestep(9, 0))])
        await wait_for_text(pilot, "Wordle task 9", "following")
        assert "last episode" not in screen_text(pilot.app)
        session.store.apply_events([live(ended(9, 2))])
        session.store.apply_list(node_list(batch_state(0, "completed")))
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await wait_for_text(pilot, "last episode · Wordle task 9", "Welcome · 2 lists all episodes")


async def test_a_last_episode_that_cannot_be_read_leaves_the_welcome_and_the_next_one_is_shown() -> None:
    session = empty_session()
    session.fake_library.damaged[episode_id(1)] = "the disk is gone"
    session.store.apply_stored([row(1)])
    async with console_pilot(session) as pilot:
        await wait_for_text(pilot, "2 lists 1 stored episode", "Screens")
        await wait_until(pilot, lambda: session.fake_library.loaded == [episode_id(1)], "the attempt to read it")
        assert "last episode" not in screen_text(pilot.app)
        session.store.apply_events([durable(completed(2))])
        await wait_for_text(pilot, "task 2", "guess 2", "observation 3", "Trace · 2 spans")
        assert session.fake_library.loaded == [episode_id(1), episode_id(2)]


async def test_the_time_left_passes_only_while_a_batch_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_tui.screens.base.TICK_S", 0.01)
    drawn, ticks = list[float](), list[float]()
    draw, tick = LiveScreen.draw_time_left, RunControl._tick

    def noted_draw(screen: LiveScreen) -> None:
        drawn.append(time.monotonic())
        draw(screen)

    def noted_tick(control: RunControl, draw: Callable[[], None]) -> None:
        ticks.append(time.monotonic())
        tick(control, draw)

    monkeypatch.setattr(LiveScreen, "draw_time_left", noted_draw)
    monkeypatch.setattr(RunControl, "_tick", noted_tick)
    session = FakeSession(empty_store())
    async with Console(session).run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: len(ticks) > 3, "ticks without a batch")
        assert not drawn
        session.store.apply_events([live(started(0))])
        await wait_until(pilot, lambda: len(drawn) > 2, "drawings of the time left")


# Keys.


async def test_keys_lead_to_other_running_episodes_and_to_the_form_and_the_episodes_of_an_environment() -> None:
    session = busy_session()
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("right_square_bracket")
        await wait_for_text(pilot, "no other episode is running")
        session.store.apply_events([live(started(5, task_index=77), timestep(5, 0))])
        await pilot.press("right_square_bracket")
        await wait_for_text(pilot, "task 77")
        await pilot.press("left_square_bracket")
        await wait_for_text(pilot, "task 3")
        await pilot.press("j", "R")
        await wait_for_text(pilot, "╭─ Run", "[x] TextCraft")
        await pilot.press("escape", "2")
        await wait_for_widget_text(pilot, "#summary", "episodes")
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, EpisodeScreen), "an episode of any environment")
        await pilot.press("1", "enter")
        await wait_for_widget_text(pilot, "#summary", "match TextCraft (esc goes back)")
        await pilot.press("escape")
        await wait_until(pilot, lambda: "match" not in widget_text(pilot, "#summary"), "all episodes")


# Hostile text.


async def test_shift_x_shows_the_bytes_of_a_hostile_step_and_environment() -> None:
    store = busy_store()
    async with Console(FakeSession(store)).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("X")
        await wait_for_text(pilot, "no unsafe bytes on this screen")
        action = type(timestep().action)("go \x1b[2J", [])
        store.apply_events([live(started(9, env="E\u202e"), timestep(9, 0, action=action))])
        store.apply_events([live(ended(3, 4), env_health("E\u202e", "down", cause="c"))])
        await wait_for_text(pilot, "go ␛[2J")
        await pilot.press("G", "X")
        await wait_for_text(pilot, "e2 80 ae")
        await pilot.press("escape", "tab", "X")
        await wait_for_text(pilot, "67 6f 20 1b 5b 32 4a")


async def test_a_hostile_episode_is_shown_safe_in_every_pane() -> None:
    store = empty_store()
    store.merge_episode(hostile_episode())
    async with Console(FakeSession(store)).run_test(size=(200, 50)) as pilot:
        await wait_for_text(pilot, "⚠", "␛")
        text = screen_text(pilot.app)
        assert not set(text) & set(HOSTILE) - set("\n") - {c for c in HOSTILE if c.isprintable()}


async def test_the_world_takes_the_place_of_the_transcript_and_follows_the_steps() -> None:
    session = busy_session()
    async with Console(session).run_test(size=SIZE) as pilot:

        async def wait_for_view(*texts: str, hidden: str = "") -> None:
            for size in (SIZE, SMALL):
                await pilot.resize_terminal(*size)
                await wait_for_text(pilot, *texts)
                assert not hidden or hidden not in screen_text(pilot.app)

        await wait_for_view("Transcript")
        await pilot.press("W")
        await wait_for_view("World · after step", "No picture of the environment", hidden="Transcript")
        last = session.store.episodes[episode_id(3)].last_step_index
        world = [["now at ", ["7", "red"]]]
        session.store.apply_events([live(timestep(3, last + 1, seq=50, world=world))])
        await wait_for_view(f"World · after step {last + 1}", "now at 7")
        session.store.apply_events([live(token(3, 51, "I go ", last + 2))])
        await wait_for_view("I go", f"World · after step {last + 1}", "now at 7")
        pilot.app.screen.query_one("#steps").focus()
        await pilot.press("k", "k")
        await wait_for_view(f"World · after step {last} ", "No picture of the environment")
        await pilot.press("W")
        await wait_for_view(f"Transcript · step {last}", hidden="World ·")


# What the batch waits for.


WAITING = Phases(queue=2.5, prefill=0.5, decode=0.75, model=3.75, env=0.2, own=0.05, about=True)


def slow_session() -> FakeSession:
    store = RunStore(now=FakeClock())
    store.set_link(BusLink(status="connected", address="127.0.0.1:4222"))
    store.apply_profile(PROFILE)
    store.apply_health(node_health(status="running"))
    store.apply_list(node_list(batch_state(agent="react", model="small")))
    store.apply_events([live(heartbeat(), model_health("lab", "up", None))])
    steps = [timestep(0, index, phases=WAITING, endpoint="lab", model="small", model_s=3.8) for index in range(3)]
    metrics = ModelMetrics(at=START, endpoint="lab", server="vllm", running=16.0, waiting=12.0, kv_cache=0.97)
    store.apply_events([live(started(model="small", agent="react"), progress(), *steps, metrics)])
    return FakeSession(store)


async def test_live_names_what_the_batch_waits_for_and_its_episode_the_shares() -> None:
    session = slow_session()
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "waiting for the model: 12 requests queued at vLLM, KV cache 97%")
        await wait_for_text(pilot, "queue about 2.5 s · prefill about 500 ms ·")
        await pilot.press("tab", "enter")
        await wait_for_text(pilot, "time: queue about 62%, decode about 19%, prefill about 12%, environment 5%")
        await pilot.press("escape")
        await wait_for_text(pilot, "waiting for the model")
        session.store.apply_events([live(progress(seq=1, paused=True))])
        await wait_for_no_text(pilot, "waiting for the model")

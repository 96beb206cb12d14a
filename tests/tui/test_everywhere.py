"""What holds on all screens since there are settings: own keys, themes, order, sizes, pictures, the end of a batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.theme import BUILTIN_THEMES
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.attention import OSC_9, OSC_777, desktop_sequence
from agentgym_tui.clean import is_hostile, own
from agentgym_tui.ends import Ends
from agentgym_tui.kept import Kept
from agentgym_tui.keymap import Keys
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.episodes import Episodes
from agentgym_tui.screens.live import LiveScreen
from agentgym_tui.sessions.session import Unusable
from agentgym_tui.settings import Notify, Settings, parsed
from agentgym_tui.sizes import EPISODE_NARROW, EPISODE_WIDE, LIVE_NARROW, LIVE_NARROW_TRACE, LIVE_WIDE, WAYS, shares
from agentgym_tui.store.run_store import RunStore
from agentgym_tui.views.cells import Cell, Source
from agentgym_tui.views.episode_list import EpisodeList
from agentgym_tui.views.listing import EpisodeRows, list_line
from agentgym_tui.views.sorting import Sorting
from agentgym_tui.views.status import progress_line, status_lines
from agentgym_tui.views.tables import EnvRows, StepRows
from agentgym_tui.views.trace import SpanRows
from agentgym_tui.views.welcome import welcome_lines
from agentgym_tui.widgets.sortable import Sortable
from agentgym_tui.widgets.status import Pane
from runner.types import Outcome
from tests.tui.bus_samples import START
from tests.tui.fake_session import FakeSession, busy_session, empty_session, files_session
from tests.tui.samples import (
    HOSTILE,
    FakeClock,
    batch_completed,
    batch_id,
    batch_state,
    busy_store,
    durable,
    empty_store,
    episode_id,
    error_store,
    hostile_store,
    node_list,
    row,
    span,
)
from tests.tui.screens import gone, screen_text, shown, until

SIZE, SMALL = (120, 40), (80, 24)


def app_of(session: FakeSession, settings: Settings | None = None, kept: Kept | None = None) -> Console:
    app = Console(session, settings, kept, now=FakeClock())
    app.animation_level = "none"
    return app


# Keys of one's own.

OWN_KEYS = b"""keymap: {run.battery: f4, app.episodes: [L, f5], list.down: E, episodes.filter: c, app.help: h,
  list.left: left, quit.leave: f2}"""


async def test_own_keys_work_everywhere_and_are_shown_everywhere() -> None:
    settings = parsed(OWN_KEYS)
    assert settings.complaints == ()
    app = app_of(busy_session(), settings)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3", "f4 Battery", "L Episodes", "h Help")
        await pilot.press("b")
        assert isinstance(app.screen, LiveScreen)
        await pilot.press("f4")
        await shown(pilot, "╭─ Battery")
        await pilot.press("escape", "h")
        await shown(pilot, "╭─ Help", "  f4 ")
        await pilot.press("escape", "colon", *"battery")
        await shown(pilot, "╭─ Commands", "f4    Battery")
        await pilot.press("escape", "q")
        await shown(pilot, "Leave them running (f2)")
        await pilot.press("escape", "f5")
        await until(pilot, lambda: isinstance(app.screen, Episodes), "episodes")
        await pilot.press("c", *"cLe1")
        assert app.screen.query_one(Input).value == "cLe1"


async def test_what_cannot_be_used_is_told_at_the_start() -> None:
    settings = Settings(complaints=tuple(own(f"complaint {n}") for n in range(8)))
    async with app_of(empty_session(), settings).run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot, "console.yaml, otherwise as usual", "complaint 4", "and 3 more")


# Themes and colours.


@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark"])
async def test_themes(theme: str) -> None:
    assert theme in BUILTIN_THEMES
    app = app_of(FakeSession(hostile_store()), Settings(theme=theme))
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "␛")
        assert app.theme == theme
        await pilot.press("2", "question_mark")
        await shown(pilot, "╭─ Help")


def told_cells() -> Iterator[Cell]:
    """What the screens say of environments, steps, episodes, batches, spans and the way to the node."""
    ends = [row(n, outcome=outcome, success=not n, error_type="Fault") for n, outcome in enumerate(Outcome)]
    listed = EpisodeList()
    listed.take_stored(ends, [Unusable(Path("/x"), "no JSON")])
    for store in (busy_store(), error_store(), empty_store()):
        episodes = [StepRows(episode) for episode in store.episodes.values()]
        listed.take_live(store.episodes.values())
        spans = SpanRows([span(1), replace(span(2), attributes={"error": "x"})])
        sources: list[Source] = [EnvRows(store), EpisodeRows(listed), spans, *episodes]
        for rows in sources:
            yield from (cell for index in range(len(rows)) for cell in rows.line(index, 200))
        lines = [
            *status_lines(store, "x", 200, n_why=3),
            *welcome_lines(store, 200, Keys().key),
            list_line(listed, own(""), 200),
        ]
        yield from (cell for line in [*lines, progress_line(store.active_batch(), 200, lost=True)] for cell in line)


def test_no_colour_says_what_no_sign_or_word_says() -> None:
    tones: dict[str, set[str]] = {}
    for cell in told_cells():
        tones.setdefault(cell.text.strip(), set()).add(cell.tone)
    meant = {text: found & {"good", "bad", "warn"} for text, found in tones.items()}
    assert {tone for found in meant.values() for tone in found} == {"good", "bad", "warn"}
    assert [text for text, found in meant.items() if len(found) > 1] == []
    told = re.compile(r"[-✗!◐◔…‖○?⚠a-z]")
    assert [text for text, found in meant.items() if found & {"bad", "warn"} and not told.search(text)] == []


# The order of lists.


def with_rows() -> FakeSession:
    session = empty_session()
    session.files.stored = [
        row(1, env="Maze", reward=0.5, outcome=Outcome.FAILURE, node=HOSTILE[:20]),
        row(2, env="Wordle", reward=-1.0),
        row(3, env="BabyAI", reward=0.5),
        row(4, env="maze", reward=float("nan")),
    ]
    return session


def listed(app: Console) -> list[int]:
    """The numbers of the episodes in the order they are shown."""
    rows = app.screen.query_one("#episodes", Sortable).source
    known = {episode_id(n): n for n in range(10)}
    return [known[rows.key(index)] for index in range(len(rows))]


async def test_a_click_on_a_title_sorts_reverses_and_gives_the_usual_order_back() -> None:
    kept = Kept()
    app = app_of(with_rows(), kept=kept)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await shown(pilot, "4 episodes", "started ▼")
        assert listed(app) == [4, 3, 2, 1]
        at = screen_text(app).splitlines()[1].index("reward")
        for title, order in (("rewar▼", [3, 1, 2, 4]), ("rewar▲", [2, 3, 1, 4]), ("started ▼", [4, 3, 2, 1])):
            await pilot.click("#episodes", offset=(at, 0))
            await shown(pilot, title)
            assert listed(app) == order
        await pilot.click("#episodes", offset=(15, 0))
        await shown(pilot, "environment", "by environment ▲")
        assert listed(app) == [3, 4, 1, 2]
        assert kept.sorting == {"episodes": Sorting("environment")}


async def test_keys_sort_too_and_the_cursor_stays_on_its_row() -> None:
    app = app_of(with_rows())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await shown(pilot, "4 episodes")
        await pilot.press("j", "j")
        table = app.screen.query_one(Sortable)
        assert table.key == episode_id(2)
        await pilot.press("O")
        await shown(pilot, "started ▲")
        assert listed(app) == [1, 2, 3, 4]
        assert table.key == episode_id(2)
        await pilot.press("o")
        await shown(pilot, "by environment ▲")
        for _ in range(8):
            await pilot.press("o")
        await gone(pilot, "by ")
        assert table.sorting is None


async def test_environments_are_sorted() -> None:
    kept = Kept()
    app = app_of(busy_session(), kept=kept)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        table = app.screen.query_one("#environments", Sortable)
        usual = [table.source.key(n) for n in range(len(table.source))]
        await pilot.click("#environments", offset=(3, 0))
        await shown(pilot, "environment▲")
        assert [table.source.key(n) for n in range(len(table.source))] == sorted(usual, key=str.casefold)
        await pilot.press("O")
        await shown(pilot, "environment▼")
        assert kept.sorting == {"environments": Sorting("environment", True)}
        for _ in range(9):
            await pilot.press("o")
            if table.sorting is None:
                break
        assert [table.source.key(n) for n in range(len(table.source))] == usual


# Sizes.


@pytest.mark.parametrize("bound", ["least", "most"])
@pytest.mark.parametrize("size", [SIZE, (60, 20)], ids=str)
async def test_every_pane_can_be_seen_at_the_bounds_of_its_size(size: tuple[int, int], bound: str) -> None:
    sizes = {share.key: getattr(share, bound) for levers in (LIVE_WIDE, LIVE_NARROW) for share in shares(levers)}
    async with app_of(busy_session(), kept=Kept(sizes=sizes)).run_test(size=size) as pilot:
        await until(pilot, lambda: len(visible_panes(pilot)) > 2, "an episode")
        await pilot.pause()
        panes = visible_panes(pilot)
        assert all(pane.region.height > 1 and pane.region.width > 9 for pane in panes)


async def test_each_pane_grows_and_shrinks_and_all_are_as_they_were_again() -> None:
    kept = Kept()
    async with app_of(busy_session(), kept=kept).run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        await pilot.pause()
        before = [pane.region for pane in visible_panes(pilot)]
        for pane in visible_panes(pilot):
            pane.query_one("LineView").focus()
            await pilot.pause()
            for key, other, way in (("greater_than_sign", "less_than_sign", "width"), ("plus", "minus", "height")):
                size = getattr(pane.size, way)
                await pilot.press(key)
                await until(pilot, lambda: getattr(pane.size, way) > size, "more room")  # noqa: B023
                await pilot.press(other, other)
                await until(pilot, lambda: getattr(pane.size, way) < size, "less room")  # noqa: B023
            await pilot.press("equals_sign")
            await until(pilot, lambda: [pane.region for pane in visible_panes(pilot)] == before, "as before")
        assert kept.sizes == {}


def visible_panes(pilot: Pilot[None]) -> list[Pane]:
    return [pane for pane in pilot.app.screen.query(Pane) if pane.display and pane.size]


async def test_the_focused_pane_takes_from_its_neighbour_and_zoom_is_above_it_all() -> None:
    app = app_of(busy_session())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot, "task 3")
        left = app.screen.query_one("#left")
        width = left.size.width
        await pilot.press("greater_than_sign")
        await until(pilot, lambda: left.size.width > width, "a wider left side")
        await pilot.press("tab", "tab", "tab", "greater_than_sign", "greater_than_sign")
        await until(pilot, lambda: left.size.width < width, "a wider right side")
        await pilot.press("z")
        await until(pilot, lambda: app.screen.query_one("#transcript").size.width > 110, "all of the screen")
        await pilot.press("plus")
        await shown(pilot, "nothing here can take another size")
        await pilot.press("z")
        await until(pilot, lambda: left.size.width < width, "the sizes from before")
        await pilot.press("2", "plus")
        await shown(pilot, "nothing here can take another size")


@pytest.mark.parametrize(("size", "key", "way"), [(SIZE, "greater_than_sign", "width"), (SMALL, "plus", "height")])
async def test_the_steps_of_an_episode_take_more_room(size: tuple[int, int], key: str, way: str) -> None:
    kept = Kept()
    session = files_session()
    app = app_of(session, kept=kept)
    async with app.run_test(size=size) as pilot:
        app.push_screen(EpisodeScreen(session, episode_id(1), kept=kept))
        await until(pilot, lambda: bool(app.screen.query("#steps")) and app.focused is not None, "steps")
        await pilot.pause()
        steps = app.screen.query_one("#steps")
        before = getattr(steps.size, way)
        await pilot.press(key)
        await until(pilot, lambda: getattr(steps.size, way) > before, "more room")
        await pilot.press("z", "z", "equals_sign")
        await until(pilot, lambda: getattr(steps.size, way) == before, "as before")


async def test_the_border_between_the_sides_is_dragged() -> None:
    kept = Kept()
    app = app_of(busy_session(), kept=kept)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        right = app.screen.query_one("#right")
        x = right.region.x
        await pilot.mouse_down(offset=(x, 20))
        await pilot.hover(offset=(x - 20, 20))
        await until(pilot, lambda: right.region.x < x - 15, "a border further left")
        await pilot.mouse_up(offset=(x - 20, 20))
        await pilot.hover(offset=(x, 20))
        await pilot.pause()
        assert right.region.x < x - 15
        assert kept.sizes == {"live.wide.left": round(100 * (x - 20) / 120)}
        await pilot.mouse_down(offset=(x + 5, 20))
        await pilot.hover(offset=(x, 20))
        await pilot.pause()
        assert right.region.x < x - 15


@pytest.mark.parametrize("levers", [LIVE_WIDE, LIVE_NARROW, LIVE_NARROW_TRACE, EPISODE_WIDE, EPISODE_NARROW])
def test_shares_leave_room_for_what_is_beside_them(levers: dict) -> None:  # type: ignore[type-arg]
    assert all(0 < share.least < share.most < 100 for share in shares(levers))
    stacked = [share.most for share in shares(levers) if share.part in ("environments-pane", "trace-pane")]
    assert sum(stacked) <= 90
    assert {axis for _, axis in levers} <= {axis for axis, _ in WAYS.values()}


# Pictures.


async def test_a_picture_of_the_screen_holds_what_is_on_it_and_nothing_hostile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with app_of(FakeSession(hostile_store())).run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot, "␛")
        await pilot.press("ctrl+s")
        await shown(pilot, "picture written to", ".svg")
        [picture] = pictures(tmp_path)
        assert re.fullmatch(r"agentgym-\d{8}-\d{6}\.svg", picture.name) and picture.stat().st_mode & 0o777 == 0o600
        text = picture.read_text()
        assert "␛" in text and "Environments" in text
        assert not is_hostile(text.replace("\xa0", " ")) and "<script" not in text
        monkeypatch.chdir("/proc")
        await pilot.press("ctrl+s")
        await shown(pilot, "no picture: /proc cannot be written to")


def pictures(folder: Path) -> list[Path]:
    return list(folder.iterdir())


# The end of a batch.


def playing() -> RunStore:
    store = busy_store()
    states = [batch_state(n, "running" if n == 0 else "queued", battery_id="battery") for n in range(2)]
    store.take_list(node_list(*states))
    return store


async def test_the_end_of_a_batch_is_told() -> None:
    session = busy_session()
    session.store.take_list(node_list(batch_state(0, "running", env=HOSTILE)))
    async with app_of(session).run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot, "task 3")
        session.store.take_list(node_list(batch_state(0, "completed", env=HOSTILE)))
        await shown(pilot, " completed")
        assert not is_hostile(screen_text(pilot.app))


@pytest.mark.parametrize(
    ("notify", "told"), [(Notify(), ["toast", "toast"]), (Notify(False, True, True), ["bell", OSC_9])]
)
async def test_bell_and_desktop_are_for_those_who_want_them_and_wait_for_the_whole_battery(
    notify: Notify, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = FakeSession(playing())
    app = app_of(session, Settings(notify=notify))
    written: list[str] = []
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3")
        assert app._driver is not None
        monkeypatch.setattr(app, "bell", lambda: written.append("bell"))
        monkeypatch.setattr(app, "notify", lambda *_, **__: written.append("toast"))
        monkeypatch.setattr(app._driver, "write", lambda text: written.append(text) if "\x1b]" in text else None)
        for statuses in (("completed", "running"), ("completed", "completed")):
            states = [batch_state(n, status, battery_id="battery") for n, status in enumerate(statuses)]
            session.store.take_list(node_list(*states))
            await until(pilot, lambda: app._next_drawing is None, "a drawing")
        assert written == told


def test_what_the_terminal_is_told_is_of_our_own_words() -> None:
    assert desktop_sequence({"TERM": "xterm-256color"}) == OSC_9 == "\x1b]9;AgentGym: a batch has ended\x07"
    assert desktop_sequence({"TERM": "rxvt-unicode"}) == desktop_sequence({"VTE_VERSION": "7000"}) == OSC_777


def test_a_batch_that_was_over_long_ago_is_history() -> None:
    ends, store = Ends(), playing()
    assert list(ends.look(store, START)) == []
    store.take([replace(durable(batch_completed(0)), time=START)])
    assert list(ends.look(store, START + timedelta(hours=1))) == []
    other = Ends()
    store = playing()
    assert list(other.look(store, START)) == []
    store.take([replace(durable(batch_completed(0)), time=START)])
    [ended] = other.look(store, START)
    assert ended.batch.batch_id == batch_id(0)
    assert list(other.look(store, START)) == []


# What is kept.


async def test_screen_filter_order_and_sizes_are_as_they_were_left() -> None:
    kept = Kept("episodes", {"episodes": "maze"}, {"episodes": Sorting("reward")}, {"live.wide.left": 30})
    app = app_of(with_rows(), kept=kept)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "2 match maze", "by reward ▲")
        assert app.screen.query_one(Input).display
        assert listed(app) == [1, 4]
        await pilot.press("escape", "1")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen), "live")
    assert kept == Kept("live", {"episodes": ""}, {"episodes": Sorting("reward")}, {"live.wide.left": 30})


@pytest.mark.parametrize(
    "kept",
    [
        Kept("nowhere", {"x": "y"}, {"episodes": Sorting("nothing"), "environments": Sorting("\x1b[2J")}, {"z": 5}),
        Kept(sizes={share.key: 99 for levers in (LIVE_WIDE, LIVE_NARROW) for share in shares(levers)}),
    ],
)
async def test_what_makes_no_sense_does_no_harm(kept: Kept) -> None:
    app = app_of(busy_session(), kept=kept)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, "task 3", "guess", "▌")
        assert all(pane.region.height > 1 for pane in app.screen.query("Pane") if pane.display)
        await pilot.press("o", "2", "o")
        await shown(pilot, "episodes")
        assert not is_hostile(screen_text(app))


async def test_files_that_are_looked_at_do_not_change_where_the_next_start_begins() -> None:
    kept = Kept("live")
    async with app_of(files_session(), kept=kept).run_test(size=SIZE) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, Episodes), "episodes")
    assert kept.screen == "live"

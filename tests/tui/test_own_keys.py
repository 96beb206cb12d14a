"""Keys of one's own: they work on every screen, and are shown where keys are."""

from __future__ import annotations

from textual.widgets import Input

from agentgym_tui.clean import own
from agentgym_tui.screens.episodes import Episodes
from agentgym_tui.screens.live import LiveScreen
from agentgym_tui.settings import Settings, parsed
from tests.tui.fake_session import busy_session, empty_session
from tests.tui.piloted import SIZE, app_of
from tests.tui.screens import shown, until

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

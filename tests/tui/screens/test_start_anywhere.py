"""The keys that start runs, on every screen."""

from __future__ import annotations

from textual.pilot import Pilot

from runner.events.control import StartArgs
from tests.support.console.fake_session import FakeSession, mixed_session
from tests.support.console.key_presses import screen_name
from tests.support.console.live_items import started, timestep
from tests.support.console.pilot import SIZE, by_name, console_app, wait_for_no_text, wait_for_text, wait_until
from tests.support.console.samples import live

SCREENS = (
    (("3",), "EventsScreen", ""),  # the first, since the form starts with the environments of the last run
    (("1", "j"), "LiveScreen", "TextCraft"),
    (("2",), "EpisodesScreen", "Wordle"),
    (("2", "enter"), "EpisodeScreen", "Wordle"),
    (("6", "j"), "RunsScreen", "BabyAI"),
)
"""The keys to each screen, and the environment that is selected there."""
FIRST_ENV = "BabyAI"
"""The first environment of the form."""


def ready_session() -> FakeSession:
    session = mixed_session()
    session.store.agents = ["oracle", "react"]
    return session


async def show(pilot: Pilot[None], keys: tuple[str, ...], screen: str) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause()
    await wait_until(pilot, lambda: type(pilot.app.screen).__name__ == screen, screen)
    if screen != "EventsScreen":
        await wait_for_text(pilot, "Wordle" if screen != "RunsScreen" else "battery of 2")


async def test_r_the_form_the_batteries_and_full_stop_start_runs_on_every_screen() -> None:
    session = ready_session()
    runs = session.fake_control.started
    async with console_app(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")

        async def wait_for_run(n: int, what: str) -> StartArgs:
            await wait_until(pilot, lambda: len(runs) == n, what)
            return runs[-1]

        for keys, screen, env in SCREENS:
            n = len(runs)
            await show(pilot, keys, screen)
            await pilot.press("r")
            if not env:  # nothing to run is selected
                await wait_for_text(pilot, "╭─ Run")
                await pilot.press("space", "enter", "enter")
            assert (await wait_for_run(n + 1, f"the run of {screen}")).envs == [env or FIRST_ENV]
            await wait_for_text(pilot, f"started on {env or FIRST_ENV}")
            if screen in ("LiveScreen", "EpisodesScreen"):  # the other keys are those of every screen
                continue
            await pilot.press("R")
            await wait_for_text(pilot, "╭─ Run")
            await pilot.press(*([] if env else ["space"]), "enter", "enter")
            assert (await wait_for_run(n + 2, "the run of the form")).envs == [env or FIRST_ENV]
            await wait_for_no_text(pilot, "╭─ Run")
            await pilot.press("b")
            await wait_for_text(pilot, "╭─ Battery")
            await pilot.press("enter")
            battery = await wait_for_run(n + 3, "the battery")
            assert len(battery.envs) > 1
            await wait_until(pilot, lambda: type(pilot.app.screen).__name__ == screen, screen)  # noqa: B023
            await pilot.press("2", "full_stop")
            again = await wait_for_run(n + 4, "the same run again")
            assert (again.envs, again.agent) == (battery.envs, battery.agent)


async def test_live_shows_a_run_of_another_screen_and_neither_filters_nor_dialogs_start_one() -> None:
    session = ready_session()
    app = console_app(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("6", "j", "r")
        await wait_for_text(pilot, "started on BabyAI")
        [args] = session.fake_control.started
        session.store.apply_events([live(started(7, batch_id=args.batch_id, env="BabyAI"), timestep(7, 0))])
        await pilot.press("1")
        await wait_for_text(pilot, "BabyAI task 7")
        await pilot.press("2")
        await wait_for_text(pilot, "Wordle")
        await pilot.press("slash", "r", "b", "full_stop", "R")
        await wait_for_text(pilot, "match rb.R (esc clears)")
        assert session.fake_control.started == [args] and type(app.screen).__name__ == "EpisodesScreen"
        await pilot.press("escape", "6")
        await wait_for_text(pilot, "battery of 2")
        await pilot.press(*by_name("runs.cancel_all"))
        await wait_until(pilot, lambda: screen_name(app) == "cancel_all", "the question")
        await pilot.press("r", "R", "b", "full_stop")
        await pilot.pause()
        assert session.fake_control.started == [args] and screen_name(app) == "cancel_all"

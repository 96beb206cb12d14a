"""The Machine screen: what it lists, its keys and the mouse, and its line on Live."""

from __future__ import annotations

from agentgym_tui.app import Console
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.widgets.lists import LineList
from tests.support.console.fake_session import FakeSession, bus_session, busy_session
from tests.support.console.key_presses import broken_machine
from tests.support.console.pilot import console_app, screen_text, toast_text, wait_for_text, wait_until
from tests.support.console.samples import env_health, hostile_store, live, model_health

SIZE = (120, 40)


def selected(app: Console) -> str:
    return app.screen.query_one("#machine", LineList).key


async def test_problems_are_shown_as_they_come_and_go() -> None:
    session = busy_session()
    async with console_app(session).run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("5")
        await wait_for_text(pilot, "nothing is wrong", "tensorzero", "● up")
        await pilot.press("n")
        await wait_until(pilot, lambda: toast_text(pilot) == "nothing is wrong", "the reply")
        pilot.app.clear_notifications()
        session.store.apply_events([live(model_health("tensorzero", "down", "connection refused"))])
        await wait_for_text(pilot, "1 problem", "✗ it does not answer: connection refused", "→ start the server")
        session.store.apply_events([live(model_health("tensorzero", "up", None))])
        await wait_for_text(pilot, "nothing is wrong")


async def test_keys_and_clicks_go_from_problem_to_problem_and_list_the_episodes_of_an_environment() -> None:
    app = console_app(broken_machine())
    async with app.run_test(size=SIZE) as pilot:
        for width in (80, 200, SIZE[0]):
            await pilot.resize_terminal(width, SIZE[1])
            await wait_for_text(pilot, "✗ 2 problems, press 5: WebShop: ")
        await pilot.press("5")
        await wait_for_text(pilot, "2 problems")
        await pilot.press("n")
        await wait_until(pilot, lambda: selected(app).startswith("model vllm"), "the first problem")
        await pilot.press("n")
        await wait_until(pilot, lambda: selected(app).startswith("env WebShop"), "the second problem")
        await pilot.press("p")
        await wait_until(pilot, lambda: selected(app).startswith("model vllm"), "the first problem again")
        row = next(n for n, text in enumerate(screen_text(app).split("\n")) if text.lstrip().startswith("WebShop"))
        await pilot.click(offset=(10, row))
        await wait_until(pilot, lambda: selected(app) == "env WebShop", "the clicked line")
        await pilot.click(offset=(10, row), times=2)
        await wait_until(pilot, lambda: isinstance(app.screen, EpisodesScreen), "the episodes")
        await pilot.press("5", "p")
        await wait_until(pilot, lambda: selected(app).startswith("model vllm"), "the other problem")
        await pilot.press("enter", "n", "enter")
        await wait_until(pilot, lambda: isinstance(app.screen, EpisodesScreen), "the episodes")
        await wait_for_text(pilot, "WebShop")


async def test_hostile_texts_are_shown_as_bytes() -> None:
    async with console_app(FakeSession(hostile_store())).run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("5")
        await wait_for_text(pilot, "Model servers", "␛", "⚠")
        assert "\x1b" not in screen_text(pilot.app)
        await pilot.press("n", "X")
        await wait_for_text(pilot, "1b")


async def test_the_screen_works_on_a_watched_bus() -> None:
    session = bus_session()
    session.store.apply_events([live(env_health("Maze", "down", transport="http", cause="gone"), node="other")])
    async with console_app(session).run_test(size=SIZE) as pilot:
        await pilot.press("5")
        await wait_for_text(pilot, "Machine of pmoves-4090", "Machine of other", "→ `agentgym-runner --list-envs`")

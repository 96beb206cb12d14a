"""Stopping and restarting the node, its environment servers, and the offer when its profile differs."""

from __future__ import annotations

from pathlib import Path

from agentgym_tui.app import Console
from agentgym_tui.logs import LogFile
from agentgym_tui.state.nodes import BusLink, ProfileDifference, VariableChange
from agentgym_tui.widgets.lists import LineList
from runner.client.node_client import ControlRequestError
from tests.support.console.fake_session import busy_session, empty_session
from tests.support.console.pilot import by_name, screen_text, wait_for_no_text, wait_for_text, wait_until
from tests.support.console.samples import HOSTILE

SIZE = (100, 30)
OTHER = ProfileDifference("boot", "digest", False, ("first", "/etc/first.yaml"), ("second", "/etc/second.yaml"))
CHANGED = ProfileDifference("boot", "new", True, ("mine", "/etc/mine.yaml"), ("mine", "/etc/mine.yaml"))


async def test_another_or_changed_profile_is_shown_and_a_restart_is_offered_once() -> None:
    session = busy_session()
    async with Console(session).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        session.store.set_profile_difference(OTHER)
        await wait_for_text(pilot, "The node runs the profile first", "/etc/first.yaml", "uses the profile second")
        assert "1 episode running" in screen_text(pilot.app)
        await pilot.press("r", "escape")  # keys of the screen below do not answer
        await wait_for_no_text(pilot, "Restart the node?")
        assert session.n_restarts == 0 and not session.fake_control.started
        assert "runs another profile" in screen_text(pilot.app)
        session.store.set_link(BusLink("disconnected", "drawn again"))
        await wait_for_text(pilot, "drawn again")
        assert "Restart the node?" not in screen_text(pilot.app)
        session.store.set_profile_difference(CHANGED)
        await wait_for_text(pilot, "mine has changed since the node loaded it", "/etc/mine.yaml")
        await pilot.press("N", "y")  # the second one may have been meant to copy
        await wait_until(pilot, lambda: pilot.app.focused is not None and pilot.app.focused.id == "restart")
        assert session.n_restarts == 0
        await pilot.press("y")
        await wait_until(pilot, lambda: session.n_restarts == 1, "a restart")


async def test_a_changed_key_is_named_without_its_value_and_a_hostile_profile_is_shown_safely() -> None:
    session = busy_session()
    changes: tuple[tuple[str, VariableChange], ...] = (("LAB_KEY", "changed"), ("NEW_KEY", "set"), ("OLD", "missing"))
    async with Console(session).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        session.store.set_profile_difference(CHANGED._replace(is_changed=False, variables=changes[:1]))
        await wait_for_text(pilot, "LAB_KEY has another value than when the node started", "1 episode running")
        assert "The profile" not in screen_text(pilot.app)
        await pilot.press("escape")
        await wait_for_text(pilot, "a variable of its profile has changed")
        session.store.set_profile_difference(CHANGED._replace(variables=changes))
        await wait_for_text(
            pilot,
            "mine has changed since the node loaded it",
            "LAB_KEY has another value",
            "NEW_KEY is set now; it was not when the node started",
            "OLD is not set here; a restart from here loses it",
        )
        await pilot.press("escape")
        session.store.set_profile_difference(OTHER._replace(running=(HOSTILE, HOSTILE), wanted=(HOSTILE, HOSTILE)))
        await wait_for_text(pilot, "Restart the node?", "The node runs the profile", "␛")
        assert "\x1b" not in screen_text(pilot.app)


async def test_the_offer_waits_for_an_open_dialog_and_closes_when_another_console_restarts_the_node() -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("R")
        await wait_for_text(pilot, "╭─ Run")
        session.store.set_profile_difference(CHANGED)
        await wait_until(pilot, lambda: app._draw_timer is None, "a redraw")
        assert "Restart the node?" not in screen_text(app)
        await pilot.press("escape", "2", "slash", "m")
        await wait_for_text(pilot, "match m")
        session.store.add_notice("while a query is typed")
        await wait_until(pilot, lambda: app._draw_timer is None, "a redraw")
        assert "Restart the node?" not in screen_text(app)
        await pilot.press("enter")
        session.store.add_notice("next message")
        await wait_for_text(pilot, "Restart the node?")
        session.store.set_profile_difference(None)
        await wait_for_no_text(pilot, "Restart the node?")
        assert session.n_restarts == 0


async def test_an_idle_node_stops_and_restarts_without_a_question_and_gives_the_reason_of_a_refusal() -> None:
    session = empty_session()
    session.fake_control.refusal = ControlRequestError("server_start: BabyAI has no server_cmd", "add one")
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "BabyAI")
        await pilot.press(*by_name("env.start"))
        await wait_for_text(pilot, "BabyAI has no server_cmd", "add one")
        pilot.app.clear_notifications()
        session.fake_control.refusal = ControlRequestError("the node cannot start")
        await pilot.press("ctrl+n")
        await wait_for_text(pilot, "the node cannot start")
        await pilot.press(*by_name("node.restart"))
        await wait_until(pilot, lambda: session.n_restarts == 1, "a restart")
        await pilot.press(*by_name("node.stop"))
        await wait_until(pilot, lambda: session.stops == [False], "a stop")
        await wait_for_text(pilot, "the node stops after the running")


async def test_a_server_is_stopped_at_once_only_if_no_episode_uses_it() -> None:
    session = busy_session()
    app = Console(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        table = app.screen.query_one("#environments", LineList)
        for env, asks in (("BabyAI", False), ("Wordle", True)):
            session.fake_control.servers.clear()
            await pilot.press("g")
            while table.key != env:
                await pilot.press("j")
            await pilot.press(*by_name("env.start"))
            await wait_for_text(pilot, f"server of {env} starting")
            await pilot.press(*by_name("env.stop"))
            if asks:
                await wait_for_text(pilot, "1 episode running", "waits for its server")
                assert session.fake_control.servers == [("start", env)]
                await pilot.press("y")
            commands = [("start", env), ("stop", env)]
            await wait_until(pilot, lambda: session.fake_control.servers == commands, "a stop")  # noqa: B023
            await wait_for_text(pilot, f"server of {env} stopped: requested")


async def test_the_nodes_log_is_opened_at_its_end_and_new_logs_are_added(tmp_path: Path) -> None:
    session = busy_session()
    session.has_node_logs = True
    app = Console(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("4")
        await wait_for_text(pilot, "the node's logs are not known yet")
        (tmp_path / "runner.log").write_text("".join(f"line {n}\n" for n in range(200)))
        session.logs = [LogFile(tmp_path / "runner.log")]
        await pilot.press("4")
        await wait_for_text(pilot, "runner.log", "line 199", "following")
        (tmp_path / "server-Maze.log").write_text("a server\n")
        session.logs = [*session.logs, LogFile(tmp_path / "server-Maze.log")]
        await pilot.press("1")
        await wait_for_text(pilot, "task 3")
        await pilot.press("4", "n")
        await wait_for_text(pilot, "server-Maze.log", "a server", "2 of 2")
    for log in session.logs:
        log.close()

"""The run commands of the live screen, and the toasts about them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product

import pytest

from agentgym_tui.app import Console
from agentgym_tui.sessions.run_commands import list_batteries
from agentgym_tui.state.run_store import RunStore
from runner.client.node_client import ControlRequestError
from runner.events.control import NodeList
from tests.support.console.fake_session import FakeSession, bus_session, busy_session, empty_session, files_session
from tests.support.console.pilot import (
    SIZE,
    SMALL,
    by_name,
    screen_text,
    toast_text,
    wait_for_no_text,
    wait_for_text,
    wait_until,
)
from tests.support.console.samples import (
    batch_id,
    batch_state,
    busy_store,
    empty_store,
    ended,
    env_health,
    episode_id,
    episode_items,
    live,
    node_list,
    started,
    streaming_store,
    timestep,
    token,
)

ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


def session_with_model_agent() -> FakeSession:
    session = empty_session()
    session.store.agents = ["oracle", "react"]
    return session


async def test_keys_without_a_batch_say_so_and_r_without_a_model_opens_the_form_and_offers_the_oracle() -> None:
    session = empty_session()
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("x")
        await wait_for_text(pilot, "no batch is running")
        await pilot.press("s", "s")
        await wait_for_text(pilot, "no running episode selected")
        assert "no batch is running" not in screen_text(pilot.app)  # one toast at a time
        assert screen_text(pilot.app).count("no running episode selected") == 1
        assert session.fake_control.commands == []
        await pilot.press("j", "r")
        await wait_for_text(pilot, "╭─ Run", "no agent that uses a model", "knows the solution")
        assert session.fake_control.started == []
        await pilot.press("enter", "enter")
        await wait_for_text(pilot, "oracle started on TextCraft")
        [args] = session.fake_control.started
        assert (args.envs, args.agent) == (["TextCraft"], "oracle")
        await wait_for_no_text(pilot, "╭─ Run")
        await pilot.press("r")
        await wait_until(pilot, lambda: len(session.fake_control.started) == 2, "a second run with the chosen agent")


async def test_r_runs_the_selected_environment_and_full_stop_repeats_it_with_a_new_batch_id() -> None:
    session = session_with_model_agent()
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("full_stop")
        await wait_for_text(pilot, "nothing has been started")
        await pilot.press("j", "r")
        await wait_for_text(pilot, "react started on TextCraft")
        (args,) = session.fake_control.started
        assert ULID.fullmatch(args.batch_id)
        assert (args.envs, args.agent, args.repeat) == (["TextCraft"], "react", 1)
        session.store.apply_events([live(*episode_items(0)), live(started(1, batch_id=args.batch_id, env="TextCraft"))])
        await wait_for_text(pilot, "TextCraft task 1")
        advice = "the process needs 64 and each episode 8; raise it with ulimit -n \x1b[2J"
        session.fake_control.warning = f"concurrency lowered from 200 to 14: the limit of open files is 150, {advice}"
        for size in (SMALL, SIZE):
            await pilot.resize_terminal(*size)
            await pilot.press("k", "full_stop")
            await wait_for_text(
                pilot, "react started on TextCraft", "concurrency lowered from 200 to 14", "ulimit -n ␛"
            )
            pilot.app.clear_notifications()
            await wait_for_no_text(pilot, "ulimit")
        repeated = session.fake_control.started
        assert [(each.envs, each.agent) for each in repeated] == [(["TextCraft"], "react")] * 3
        assert len({each.batch_id for each in repeated}) == 3


async def test_r_and_b_say_that_environments_are_not_loaded_or_the_profile_has_none() -> None:
    session = FakeSession(RunStore())
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("r")
        await wait_for_text(pilot, "environments not loaded yet")
        session.store.apply_list(NodeList(batches=[], envs=[], agents=["oracle"], models=[]))
        await pilot.press("r")
        await wait_for_text(pilot, "the node's profile has no environments")
        await pilot.press("b")
        await wait_for_text(pilot, "Battery", "│  the node's profile has no environments")


async def test_b_runs_a_battery() -> None:
    session = empty_session()
    session.store.apply_events([live(env_health("WebShop"), env_health("SQLGym", "wrong"))])
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("b")
        await wait_for_text(pilot, "╭─ Battery", "lightweight", "moderate", "2 of 3", "everything")
        await pilot.press("j")
        await wait_for_text(pilot, "2 environments: SQLGym, WebShop", "left out: ALFWorld (not installed)")
        await pilot.press("enter")
        await wait_for_text(pilot, "╭─ Run", "knows the solution")
        await pilot.press("enter", "enter")
        await wait_for_text(pilot, "oracle started on SQLGym, WebShop")
        assert session.fake_control.started[0].envs == ["SQLGym", "WebShop"]
        await pilot.press("b")
        await wait_for_text(pilot, "╭─ Battery")
        await pilot.press("escape")
        await wait_for_no_text(pilot, "╭─ Battery")
        assert len(session.fake_control.started) == 1


def test_batteries_are_the_tiers_of_the_profile() -> None:
    assert [
        (name, len(envs), [env.name for env in excluded]) for name, envs, excluded in list_batteries(empty_store())
    ] == [
        ("lightweight", 4, []),
        ("moderate", 0, ["ALFWorld", "SQLGym", "WebShop"]),
        ("everything", 4, ["ALFWorld", "SQLGym", "WebShop"]),
    ]
    store = RunStore()
    store.apply_events([live(env_health("Foreign"))])
    assert list_batteries(store) == []


async def test_s_steps_the_episode_and_space_pauses_also_between_two_episodes_and_names_a_refusal() -> None:
    session = busy_session()
    commands = session.fake_control.commands
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.press("s")
        await wait_until(pilot, lambda: commands == [("step", None, episode_id(3))], "the request")
        session.store.apply_events([live(ended(3, 5))])
        await pilot.press("space")
        await wait_for_text(pilot, "Wordle paused after this step")
        assert commands[1:] == [("pause", batch_id(0), None)]
        refusal = ControlRequestError("pause: no response [/] \x1b[2J", "press N [@click=app.quit]")
        session.fake_control.refusal = refusal
        await pilot.press("space")
        await wait_for_text(pilot, "no response [/] ␛[2J", "press N [@click=app.quit]")


STATES = {
    "running": ("running", None, "pause", "paused after this step"),
    "paused": ("paused", None, "resume", "resumed"),
    "waiting": ("queued", None, "pause", "paused"),
    "held": ("queued", None, "resume", "resumed"),
    "interrupted": ("interrupted", "the server is gone", "resume", "resumed"),
    "killed": ("interrupted", None, "resume", "resumed"),
    "completed": ("completed", None, None, ""),
    "cancelled": ("cancelled", None, None, ""),
}


async def test_a_key_sends_the_same_request_on_live_and_on_runs() -> None:
    session = empty_session()
    expected: list[tuple[str | None, str | None, str | None]] = []
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        for (state, (status, interruption, pauses, effect)), screen in product(STATES.items(), ("1", "6")):
            listed = batch_state(0, status, interruption=interruption, paused=state == "held")
            session.store.batches.clear()
            session.store.apply_list(node_list(listed))
            await pilot.press(screen)
            if screen == "6":
                await wait_for_text(pilot, "1 batch")
            for key in ("space", "x"):
                pilot.app.clear_notifications()
                await wait_until(pilot, lambda: toast_text(pilot) == "")
                # on Live, what is interrupted is not cancelled for good by the key that cancels what runs
                is_refused = pauses is None or (status == "interrupted" and (screen, key) == ("1", "x"))
                await pilot.press(key)
                if is_refused:
                    await wait_until(pilot, lambda: toast_text(pilot) != "", "the reason")
                else:
                    await wait_for_text(pilot, f"Wordle {effect if key == 'space' else 'cancelled'}")
                command = (pauses if key == "space" else "cancel", batch_id(0), None)
                expected += [] if is_refused else [command]
                assert session.fake_control.commands == expected, (state, screen, key)
    assert session.fake_control.commands == expected


async def test_x_in_a_battery_opens_a_dialog() -> None:
    store = busy_store()
    battery = [batch_state(0, battery_id="battery"), batch_state(1, "queued", battery_id="battery", env="Maze")]
    store.apply_list(node_list(*battery))
    session = FakeSession(store)
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        for keys, effect in (
            (("escape",), ""),
            (("enter",), ""),
            (("q", "x", "b", "n"), ""),
            (("down", "enter"), "Wordle cancelled"),
            (("up", "enter"), "2 batches cancelled"),
        ):
            assert session.fake_control.commands == ([("cancel", batch_id(0), None)] if keys[0] == "up" else [])
            await pilot.press("x")
            await wait_for_text(pilot, "Cancel what?", "is running; 1 more in this battery")
            await pilot.press(*keys)
            await wait_for_no_text(pilot, "Cancel what?")
            await wait_for_text(pilot, effect)
    assert session.fake_control.commands == [("cancel", batch_id(0), None), ("cancel", "battery", None)]


@pytest.mark.parametrize("session", [bus_session, files_session])
async def test_a_read_only_session_rejects_run_commands_with_the_reason(session: Callable[[], FakeSession]) -> None:
    read_only = session()
    async with Console(read_only).run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("1")
        await wait_for_text(pilot, "Environments", "^p Commands")
        assert "Battery" not in screen_text(pilot.app)
        for keys in (*map(list, "rRbxs"), ["full_stop"], ["space"], ["ctrl+o"], by_name("env.start")):
            pilot.app.clear_notifications()
            await pilot.press(*keys)
            await wait_until(pilot, lambda: read_only.read_only[:30] in " ".join(toast_text(pilot).split()), keys[0])
        await pilot.press("escape")
        await pilot.press("question_mark")
        await wait_for_text(pilot, "╭─ Help")
        assert "play the selected environment" not in screen_text(pilot.app)
    assert not read_only.fake_control.started and not read_only.fake_control.servers


async def test_a_step_shows_its_endpoint_and_its_warnings() -> None:
    session = busy_session()
    inference = {"endpoint": "ollama", "model": "qwen35_9b", "ttft_s": 0.25, "cost": 0.0021, "tokens_per_s": 41.6}
    session.store.apply_events(
        [live(timestep(3, 2, seq=4, warnings=["tensorzero was passed over: HTTP 503"], **inference))]
    )
    async with Console(session).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "ollama · qwen35_9b · first token 250 ms · 42", "tokens/s · cost 0.0021")
        await wait_for_text(pilot, "differs from configuration", "tensorzero was passed over: HTTP 503")


async def test_a_fallback_is_reported_while_it_answers_and_the_first_endpoint_when_it_is_back() -> None:
    session = FakeSession(streaming_store())
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "thought · streaming …", "I try one with an i.", "tool call guess · streaming …")
        await wait_for_text(pilot, "model gateway up")
        await wait_for_text(pilot, "gateway · ≈ 18 tokens/s", "first token 400 ms · qwen35_9b")
        failure, now = "gateway: the connection broke", datetime.now(UTC)
        session.store.apply_events([live(token(3, 9, "", 2, failure=failure, restart=True, at=now))])
        await wait_for_text(pilot, "↷ no endpoint has answered", "↷ no answer from", failure)
        await wait_for_no_text(pilot, "I try one")
        session.store.apply_events([live(token(3, 10, "", 2, endpoint="ollama", model="qwen3:8b", at=now))])
        await wait_for_text(pilot, "Wordle: gateway failed", "waiting for ollama", "↷ ollama instead of gateway")
        await wait_for_text(pilot, "↷ model ollama up, gateway failed")
        pilot.app.clear_notifications()
        await wait_for_no_text(pilot, "did not answer (")
        session.store.apply_events([live(timestep(3, 2, seq=11, endpoint="gateway", at=now))])
        await wait_for_text(pilot, "Wordle: gateway responds again", "model gateway up")


async def test_a_click_on_the_key_bar_presses_the_key() -> None:
    session = session_with_model_agent()
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.click("KeyBar", offset=(screen_text(pilot.app).splitlines()[-1].index("r Run"), 0))
        await wait_for_text(pilot, "react started on BabyAI")
        await pilot.click("KeyBar")  # closes the reply, which covers the keys
        await wait_for_text(pilot, "? More")
        await pilot.click("KeyBar", offset=(screen_text(pilot.app).splitlines()[-1].index("? More") + 3, 0))
        await wait_for_text(pilot, "╭─ Help")

"""The form for a model server of one's own, with real servers: what a trial shows, and the profile that is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from runner.config import load_profile
from runner.serve.mock_llm.app import ScriptResponder
from tests.support.console.fake_session import empty_session
from tests.support.console.pilot import (
    console_pilot,
    screen_text,
    wait_for_no_text,
    wait_for_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import HOSTILE
from tests.support.model_server import ModelServer
from tests.support.rude_model import PendingRequest, RudeModel, http_response

KEY = "the-right-key-of-the-lab"
WALK = "Thought:\nLeft.\nAction:\nmove left"
SIZE = (100, 30)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of profiles, which has one; the current folder has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / ".config" / "agentgym-console" / "configs"
    folder.mkdir(parents=True)
    (folder / "my-lab.yaml").write_text("id: other")
    return folder


def profiles(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in folder.iterdir()}


async def fill_form(pilot: Pilot[None], *texts: str) -> None:
    """Open the form, and paste or clear one field after another."""
    await wait_for_text(pilot, "Welcome")
    await pilot.press("ctrl+o")
    await wait_for_text(pilot, "A model of your own")
    for text in texts:
        field = pilot.app.focused
        assert isinstance(field, Input)
        field.value = text
        await pilot.press("down")


async def close_form(pilot: Pilot[None]) -> None:
    await pilot.press("escape")
    await wait_for_no_text(pilot, "A model of your own")


async def wait_for_report(pilot: Pilot[None], *texts: str) -> str:
    """Wait until the form shows all texts, whatever line they break at; return its report on one line."""

    def report() -> str:
        return " ".join(widget_text(pilot, "#report").split())

    await wait_until(pilot, lambda: all(text in report() for text in texts), " and ".join(texts))
    return report()


async def test_a_wrong_key_is_corrected_and_the_server_becomes_a_profile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = empty_session()
    monkeypatch.setenv("LAB_KEY", "a-wrong-key-of-the-lab")
    with ModelServer(ScriptResponder([WALK]), models=("small",), token=KEY) as server:
        async with console_pilot(session, SIZE) as pilot:
            await pilot.press("ctrl+p", *"model server", "enter")
            await wait_for_text(pilot, "A model of your own")
            await close_form(pilot)
            await fill_form(pilot, server.url, "small", "LAB_KEY", "My lab")
            await pilot.press("enter", "enter")
            await wait_for_report(pilot, "HTTP 401", "set the variable LAB_KEY to a valid key", "→ set it in the shell")
            monkeypatch.setenv("LAB_KEY", KEY)
            await pilot.press("enter")
            found = await wait_for_report(pilot, "✓ an OpenAI-compatible server answers at", "takes small", "✓ the")
            assert "✓ the model answers: standard requests; wrote its action as text; 2 of 2 answers" in found
            assert KEY not in screen_text(pilot.app)
            await pilot.press("right", "enter")
            await wait_for_text(pilot, "to start with it: agentgym-tui launch --config my-lab-2")
            assert session.profiles == [folder / "my-lab-2.yaml"]
    written = profiles(folder)
    assert written.keys() == {"my-lab", "my-lab-2"} and written["my-lab"] == "id: other"
    assert KEY not in written["my-lab-2"]
    agent = load_profile("my-lab-2", environ={"HOME": str(folder.parents[2])}, cwd=folder).agent
    assert (agent.model, agent.endpoint_names, agent.key_names) == ("small", ("127.0.0.1",), frozenset({"LAB_KEY"}))


async def test_what_is_wrong_is_shown_and_not_written(folder: Path) -> None:
    session = empty_session()
    async with console_pilot(session, SIZE) as pilot:
        for texts, shown, hidden in (
            (("", "m"), "✗ there is nothing to try: type the URL of a server", "✓"),
            (("http://127.0.0.1:1/v1", ""), "✗ type the model's name", "Expected"),
            (("http://127.0.0.1:1/v1", "m", "NOT_SET_HERE"), "start the console again", "✓"),
            (("http://127.0.0.1:1/v1", "m"), "✗ no connection", "start the console again"),
        ):
            await fill_form(pilot, *texts)
            await pilot.press("enter", "enter")
            assert hidden not in await wait_for_report(pilot, shown)
            await close_form(pilot)
        await fill_form(pilot, "http://127.0.0.1:1/v1", "m", "sk-another-users-key")
        await pilot.press("enter", "right", "enter")
        await wait_for_report(pilot, "Expected the name of an environment variable, not its value")
    assert session.profiles == [] and profiles(folder).keys() == {"my-lab"}


async def test_settings_of_the_profile_in_use_are_changed_without_a_server(folder: Path) -> None:
    session = empty_session()
    async with console_pilot(session, SIZE) as pilot:
        await fill_form(pilot, "", "", "", "colder", "0")
        form = pilot.app.screen
        assert f"new profile from {session.profile[0].id}" in screen_text(pilot.app)
        assert [form.query_one(f"#{key}", Input).value for key in ("max_rounds", "max_duration_sec")] == ["15", "300"]
        form.query_one("#max_rounds", Input).value = "16"
        await pilot.press("enter", "right", "enter")
        await wait_for_report(pilot, "✗ rounds: at most 15")
        form.query_one("#max_rounds", Input).value = "5"
        await pilot.press("enter")
        await wait_for_text(pilot, "it lacks the comments of agent", "--config colder")
    before, after = session.profile[0], load_profile("colder", environ={"HOME": str(folder.parents[2])}, cwd=folder)
    assert (after.agent.temperature, after.episode.max_rounds, after.episode.max_duration_sec) == (0.0, 5, 300.0)
    assert (after.environments, after.agent.endpoint_names) == (before.environments, before.agent.endpoint_names)
    assert "${TENSORZERO_URL:-http://localhost:3030}/v1/chat/completions" in (folder / "colder.yaml").read_text()


async def test_hostile_texts_of_a_server_are_shown_safely() -> None:
    refusal = json.dumps({"error": {"message": HOSTILE}}).encode()
    listed = json.dumps({"data": [{"id": HOSTILE}, {"id": "m"}]}).encode()
    with RudeModel(http_response(401, refusal), routes={"/v1/models": http_response(200, listed)}) as server:
        async with console_pilot(empty_session(), SIZE) as pilot:
            for model in ("m", "unknown"):
                await fill_form(pilot, server.url, model)
                await pilot.press("enter", "enter")
                await wait_for_text(pilot, "✗ ")
                assert "\x1b" not in screen_text(pilot.app)
                await close_form(pilot)


async def test_a_trial_is_stopped_and_started_again() -> None:
    def answer(pending: PendingRequest) -> None:
        if pending.request.json().get("messages"):
            pending.stopping.wait(60)
        pending.send(http_response(400, b'{"error": {"message": "messages must not be empty"}}'))

    routes = {"/v1/models": http_response(200, b'{"data": [{"id": "m"}]}')}
    with RudeModel(answer, routes=routes) as server:
        async with console_pilot(empty_session(), SIZE) as pilot:
            await fill_form(pilot, server.url, "m")
            await pilot.press("enter")
            for _ in range(2):
                await pilot.press("enter")
                await wait_for_report(pilot, "takes m", "asking the model …")
                await pilot.press("escape")
                await wait_for_report(pilot, "takes m", "stopped")
            await close_form(pilot)
            await pilot.press("2")
            await wait_for_text(pilot, "3 episodes")

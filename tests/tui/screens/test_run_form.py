"""The run form: parsing and validation of its texts, its default agent, and its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.screens.base import DialogFrame
from agentgym_tui.screens.dialogs.forms import RunForm
from agentgym_tui.sessions.run_commands import (
    FORM_FIELDS,
    MAX_EPISODES,
    Parsed,
    RunCommands,
    default_agent,
    form_texts,
    model_problem,
    parse_form,
    startable_agents,
)
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.inputs import CheckList, OptionStepper
from runner.client.node_client import ControlRequestError
from runner.events.control import NodeHealth, NodeList, StartArgs
from runner.types import Budget
from tests.support.console.fake_session import FakeSession, empty_session
from tests.support.console.pilot import SIZE, SMALL, screen_text, wait_for_text, wait_until
from tests.support.console.samples import HOSTILE, empty_store, live, model_health

DEFAULT_TEXTS: dict[str, str] = {field.id: field.default for field in FORM_FIELDS}


def parse(texts: Mapping[str, str], envs: Sequence[str] = ("Wordle",)) -> tuple[StartArgs | None, dict[str, str]]:
    parsed = parse_form({**DEFAULT_TEXTS, **texts}, envs=envs, agent="oracle", model=None, batch_id="01B")
    return parsed.args, {name: str(error) for name, error in parsed.errors.items()}


def test_the_defaults_are_one_episode() -> None:
    assert parse({}) == (StartArgs(batch_id="01B", envs=["Wordle"], agent="oracle"), {})


def test_all_numbers_are_parsed() -> None:
    numbers = {"repeat": 3, "attempts": 2, "task_index": 7, "seed": 5, "concurrency": 4, "workers": 0, "max_rounds": 9}
    fields = {"batch_id": "01B", "envs": ["Wordle"], "agent": "oracle", **numbers, "max_duration_sec": 12.5}
    texts = {name: str(number) for name, number in numbers.items()}
    assert parse({**texts, "seed": " 5 ", "max_duration_sec": "12.5"}) == (msgspec.convert(fields, StartArgs), {})


INVALID = [
    ("repeat", "", "must be a whole number"),
    ("repeat", "0", "at least 1"),
    ("repeat", "1.5", "must be a whole number"),
    ("repeat", "\u0661", "must be a whole number"),
    ("repeat", "1_0", "must be a whole number"),
    ("attempts", str(MAX_EPISODES + 1), "at most 1,000,000"),
    ("task_index", "-1", "must be a whole number"),
    ("seed", "9" * 19, f"at most {2**62 - 1:,}"),
    ("concurrency", "257", "at most 256"),
    ("workers", "257", "at most 256"),
    ("workers", "ra", "must be a whole number"),
    ("repeat", "ray", "must be a whole number"),
    ("max_rounds", "0", "at least 1"),
    ("max_duration_sec", "0", "more than 0"),
    ("max_duration_sec", "nan", "must be a number"),
    ("max_duration_sec", "1e9", "must be a number"),
]


def test_invalid_entries_have_an_error() -> None:
    for field, text, error in INVALID:
        assert parse({field: text}) == (None, {field: error}), text
    assert parse({}, []) == (None, {"envs": "choose one"})
    assert parse({"repeat": "1000000", "attempts": "2"}) == (None, {"attempts": "more than 1,000,000 episodes"})


def test_the_texts_of_a_run_parse_to_the_same_run() -> None:
    args = StartArgs(
        batch_id="01B", envs=["Wordle"], agent="oracle", repeat=40, workers="ray", max_duration_sec=1_000_000.0
    )
    assert parse_form(form_texts(args), envs=args.envs, agent="oracle", model=None, batch_id="01B").args == args
    assert form_texts(None) == DEFAULT_TEXTS


def store_with_agents(*agents: str) -> RunStore:
    store = empty_store()
    store.apply_list(NodeList(batches=[], envs=["Wordle"], agents=list(agents), models=["qwen35_9b"]))
    return store


def test_model_problem_names_the_reason() -> None:
    assert "waiting for the node" in model_problem(RunStore())
    assert "no agent that uses a model is installed" in model_problem(store_with_agents("oracle", "random", "scripted"))
    store = store_with_agents("oracle", "react")
    assert model_problem(store) == ""
    store.apply_events([live(model_health("tensorzero", "down", "refused"))])
    assert model_problem(store) == "no model is reachable: tensorzero down: refused"
    store.apply_events([live(model_health("ollama", "up", None))])
    assert model_problem(store) == ""


def test_default_and_startable_agents() -> None:
    assert default_agent(store_with_agents("agentgym", "oracle", "react")).agent == "react"
    assert default_agent(store_with_agents("agentgym", "oracle")).agent == "agentgym"
    assert default_agent(store_with_agents("oracle", "random")).agent == "oracle"
    assert startable_agents(store_with_agents("oracle", "random", "scripted", "react")) == ["oracle", "random", "react"]
    assert startable_agents(RunStore()) == ["oracle"]


def note_height(form: Screen[object]) -> int:
    """Return how many rows stand above the fields."""
    return form.query_one("#columns").region.y - form.query_one("#form").content_region.y


@pytest.fixture
def frame_sizes(monkeypatch: pytest.MonkeyPatch) -> list[Size]:
    """The sizes that the frames of dialogs have had."""
    sizes: list[Size] = []
    monkeypatch.setattr(DialogFrame, "on_resize", lambda _, event: sizes.append(event.size), raising=False)
    return sizes


async def test_the_form_without_a_model_gives_the_reason_and_is_used_by_mouse(frame_sizes: list[Size]) -> None:
    session = empty_session()
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("R")
        await wait_for_text(pilot, "╭─ Run", "Start", "no agent that uses a model is installed")
        assert "choose the oracle agent" not in screen_text(pilot.app)  # which is already chosen
        assert "not needed" in screen_text(pilot.app) and "knows the solution" in screen_text(pilot.app)
        assert "enter to Start ·" in screen_text(pilot.app)
        assert len(set(frame_sizes)) == 1, "the form has its final size at its first paint"
        assert note_height(pilot.app.screen) == 1
        await pilot.press("enter")
        await wait_for_text(pilot, "enter Start ·")
        await pilot.press("right")
        await wait_for_text(pilot, "enter Close ·")
        envs, agent = pilot.app.screen.query_one(CheckList), pilot.app.screen.query_one("#agent", OptionStepper)
        await pilot.click(CheckList, offset=(5, 2))
        assert envs.chosen == {0, 2}
        await pilot.click(CheckList, offset=(5, 1), times=2)
        assert isinstance(pilot.app.screen, RunForm) and session.fake_control.started == []
        await pilot.click("#agent")
        assert agent.index == 1
        await pilot.click("#close")
        assert not isinstance(pilot.app.screen, RunForm)


async def test_a_refused_form_keeps_its_entries_is_sent_again_and_its_values_return(frame_sizes: list[Size]) -> None:
    session = empty_session()
    started, refused = session.fake_control.started, session.fake_control.refused
    session.fake_control.refusal = ControlRequestError("start: node n does not answer", "press N to start it again")
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("R", "enter", "enter")
        await wait_for_text(pilot, "start: node n does not answer")
        await pilot.press("escape", "full_stop")
        await wait_for_text(pilot, "nothing has been started")

        def entries() -> tuple[object, ...]:
            form = pilot.app.screen
            texts = (form.query_one(f"#{name}", Input).value for name in ("repeat", "attempts"))
            return (*texts, form.query_one("#agent", OptionStepper).index)

        await pilot.press("j", "R")
        await wait_until(pilot, lambda: isinstance(pilot.app.focused, CheckList), "the form")
        await pilot.press("down", "space", "tab", "right", "tab", "tab", "5", "down", "2", "enter", "enter")
        for size in (SMALL, SIZE):
            await pilot.resize_terminal(*size)
            await wait_for_text(pilot, "✗ start: node n does not answer; press N to start it again")
            assert entries() == ("5", "2", 1) and not started
        session.fake_control.refusal = None
        await pilot.press("enter")
        await wait_for_text(pilot, "random started on", "20 episodes")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, RunForm), "the closed form")
        [args] = started
        assert args.batch_id == refused[-1].batch_id != refused[0].batch_id and len(args.batch_id) == 26
        assert (args.envs, args.agent, args.model) == (["TextCraft", "Maze"], "random", None)
        assert (args.repeat, args.attempts) == (5, 2)
        frame_sizes.clear()
        await pilot.press("R")
        await wait_for_text(pilot, "╭─ Run")
        assert entries() == ("5", "2", 1) and len(set(frame_sizes)) == 1


async def test_a_model_that_came_since_the_last_run_is_played_in_place_of_the_oracle() -> None:
    session = FakeSession(store := store_with_agents("oracle", "react"))
    commands = RunCommands(session)
    store.apply_events([live(model_health("lab", "down", "refused"))])
    await commands.start(StartArgs(batch_id="01B", envs=["Wordle"], agent="oracle"))
    assert commands.agent_choice().agent == "oracle"
    store.apply_events([live(model_health("lab", "up", None))])
    assert commands.agent_choice().agent == "react"
    await commands.start(StartArgs(batch_id="01C", envs=["Wordle"], agent="oracle"))
    assert commands.agent_choice().agent == "oracle"
    store.apply_list(NodeList(batches=[], envs=["Wordle"], agents=store.agents, models=["own"]))
    assert commands.agent_choice().agent == "react"


async def test_errors_are_shown_beside_their_fields_and_prevent_a_start() -> None:
    session = empty_session()
    async with Console(session).run_test(size=(60, 20), notifications=True) as pilot:
        await pilot.press("R", "tab", "tab", "tab", "0")
        await wait_for_text(pilot, "✗ tasks: at least 1", "Start")
        await pilot.resize_terminal(*SMALL)
        await wait_for_text(pilot, "✗ at least 1")
        await pilot.press("enter", "enter")
        assert isinstance(pilot.app.screen, RunForm)
        pilot.app.screen.query_one("#repeat", Input).value = "3"
        pilot.app.screen.query_one(CheckList).focus()
        await pilot.press("ctrl+a", "ctrl+a", "enter", "enter")
        await wait_for_text(pilot, "✗ choose one")
        pilot.app.screen.query_one(CheckList).focus()
        await pilot.press("ctrl+a", "enter", "enter")
        await wait_for_text(pilot, "21 episodes")
    assert [len(args.envs) for args in session.fake_control.started] == [7]


async def test_moving_the_focus_in_the_form_repaints_no_more_than_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    repainted = list[bool]()

    def refresh(form: RunForm, *regions: Region, **options: bool) -> RunForm:
        repainted.append(not regions)
        return super(RunForm, form).refresh(*regions, **options)

    session = FakeSession(store_with_agents("oracle", "react"))
    async with Console(session).run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("R")
        await wait_until(pilot, lambda: isinstance(pilot.app.focused, CheckList), "the form")
        form, envs = pilot.app.screen, pilot.app.screen.query_one(CheckList)
        assert note_height(form) == 0
        await pilot.press("space")
        assert envs.chosen == set()
        await pilot.press("ctrl+a")
        assert len(envs.chosen) == 7
        monkeypatch.setattr(RunForm, "refresh", refresh)
        await pilot.press("tab")
        agent, model = (form.query_one(f"#{name}", OptionStepper) for name in ("agent", "model"))
        assert agent.has_focus and agent.index == 1 and not any(repainted)
        await pilot.press("down", "right", "l")
        assert model.has_focus and model.index == 0
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, RunForm)


async def test_empty_fields_show_the_values_of_the_profile() -> None:
    session = empty_session()
    defaults = {"concurrency": 4, "workers": None, "max_rounds": 15, "max_duration_sec": 300.0}
    session.store.set_profile_defaults("field-runner-4090", defaults)
    health = NodeHealth(
        node="n", boot="b", pid=1, profile="other", version="1", status="idle", uptime_s=1.0, data_dir="/d", egress=None
    )
    async with Console(session).run_test(size=SMALL) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("R")
        await wait_for_text(pilot, "4 (profile)", "auto (profile)", "15 (profile)", "300 (profile)")
        await pilot.press("escape")
        session.store.apply_health(health)  # the node was started with another profile
        await pilot.press("R")
        await wait_for_text(pilot, "concurrency  profile")


CAUSE = "HTTP 503 from the gateway: no healthy upstream; start the model server with agentgym-runner serve-model"


async def test_the_cause_of_an_unreachable_model_is_shown_in_full() -> None:
    store = store_with_agents("oracle", "react")
    store.apply_events([live(model_health("http://gpu-node-17.lab:3000/openai/v1", "down", CAUSE))])
    async with Console(FakeSession(store)).run_test(size=SMALL) as pilot:
        for size in (SMALL, SIZE, (200, 50)):
            await pilot.resize_terminal(*size)
            await pilot.press("R", "tab", "right")
            await wait_for_text(pilot, "choose the oracle agent: no model needed", "the profile's: qwen35_9b")
            text = " ".join(row.split("│")[1] for row in screen_text(pilot.app).splitlines() if row.count("│") == 2)
            assert f"no model is reachable: gpu-node-17.lab:3000 down: {CAUSE}" in " ".join(text.split())
            await pilot.press("escape")


async def test_long_model_names_are_distinguishable_and_hostile_names_visible() -> None:
    names = [f"organisation-with-a-name/model-of-a-family-{size}" for size in ("7b-awq", "70b-gguf")]
    store = RunStore()
    store.apply_profile([(HOSTILE, HOSTILE, HOSTILE)])
    store.apply_list(NodeList(batches=[], envs=["Wordle"], agents=["react"], models=names))
    async with Console(FakeSession(store)).run_test(size=SMALL, notifications=True) as pilot:
        await pilot.press("R", "tab", "tab", "right")
        await wait_for_text(pilot, "7b-awq ▸")
        await pilot.press("right")
        await wait_for_text(pilot, "70b-gguf ▸")
        await pilot.press("escape")
        await pilot.resize_terminal(*SIZE)
        store.apply_list(NodeList(batches=[], envs=[HOSTILE], agents=["oracle", HOSTILE], models=[HOSTILE]))
        await pilot.press("R", "tab", "right")
        await wait_for_text(pilot, "╭─ Run", "␛[2J")
        form = "\n".join(row for row in screen_text(pilot.app).splitlines() if "│" in row)
        assert "␛[2J" in form and "\x1b" not in screen_text(pilot.app)


def test_budgets_adaptive_repeats_and_several_models_are_parsed_and_shown_again() -> None:
    texts: dict[str, str] = {"repeat": "500", "until_width": "0.2", "cost": "1.5", "tokens": "1000"}
    parsed = parse_form(
        {**DEFAULT_TEXTS, **texts}, envs=["Wordle"], agent="react", model="a", batch_id="01B", models=" a, b ,c"
    )
    budget = Budget(cost=1.5, tokens=1000)
    expected = StartArgs(batch_id="01B", envs=["Wordle"], agent="react", repeat=500, models=["a", "b", "c"])
    expected.until_width, expected.budget = 0.2, budget
    assert parsed.args == expected
    assert form_texts(expected) == {**DEFAULT_TEXTS, **texts}
    assert parse({"until_width": "0.2"})[1] == {"until_width": "needs 2 tasks"}
    assert parse({"until_width": "0.2", "repeat": "2", "attempts": "2"})[1] == {"until_width": "needs 1 attempt"}
    assert parse({"until_width": "1.2", "repeat": "2"})[1] == {"until_width": "at most 1"}
    assert parse({"errors_in_a_row": "0"})[1] == {"errors_in_a_row": "at least 1"}
    for models in ("a,", "a,b,a"):
        invalid = parse_form(DEFAULT_TEXTS, envs=["Wordle"], agent="react", model=None, batch_id="01B", models=models)
        assert dict(invalid.errors) == {"models": "an empty or repeated name"}


def test_a_file_with_tasks_becomes_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "tasks"

    def parsed(content: str, *envs: str) -> Parsed:
        path.write_text(content)
        return parse_form(DEFAULT_TEXTS, envs=envs, agent="oracle", model=None, batch_id="01B", tasks=str(path))

    both = parsed("maze_3\nmaze_1\nlmrlgym_wordle_2\n", "Maze", "Wordle").args
    assert both is not None and both.tasks == {"Maze": [3, 1], "Wordle": [2]}
    assert str(path) not in msgspec.json.encode(both).decode()
    one = parsed("17\n4-5", "Maze").args
    assert one is not None and one.tasks == {"Maze": [17, 4, 5]}
    for content, envs, problem in (
        ("maze_3", ("Maze", "Wordle"), "the file has no task of Wordle"),
        ("maze_3\nwordle_1", ("Maze",), "wordle_1 are no tasks of Maze"),
        ("maze_3\nwordle_1\nbabyai_1", ("Maze", "Wordle"), "the file has tasks of babyai, which is not chosen"),
        ("0-5000", ("Maze",), "the file has more than 5,000 tasks"),
    ):
        assert problem in parsed(content, *envs).errors["tasks"]


async def test_the_tasks_of_a_file_are_started_from_the_form(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("babyai_9\n")
    session = FakeSession(store_with_agents("oracle"))
    async with Console(session).run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("R")
        await wait_for_text(pilot, "task file")
        pilot.app.screen.query_one("#tasks", Input).focus()
        await pilot.press(*"/missing", "enter", "enter")
        await wait_for_text(pilot, "cannot be read")
        pilot.app.screen.query_one("#tasks", Input).value = str(tmp_path / "t")
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(session.fake_control.started))
    assert session.fake_control.started[0].tasks == {"BabyAI": [9]}


async def test_a_sweep_with_a_budget_is_started_from_the_form_by_the_keyboard() -> None:
    session = FakeSession(store_with_agents("react", "oracle"))
    async with Console(session).run_test(size=(60, 20), notifications=True) as pilot:
        await pilot.press("R")
        await wait_for_text(pilot, "╭─ Run")
        await pilot.press(*["tab"] * 12, *"0.2", "tab", *"2.5")
        await wait_for_text(pilot, "needs 2 tasks")
        await pilot.press(*["up"] * 10, "5", "0")
        for _ in range(13):
            await pilot.press("down")
        await pilot.press(*"m1,m2")
        await wait_for_text(pilot, "m1,m2")
        pilot.app.screen.query_one("#longer").focus()
        await pilot.press("right", "enter", "enter")
        await wait_until(pilot, lambda: bool(session.fake_control.started))
    (args,) = session.fake_control.started
    assert (args.repeat, args.until_width, args.budget, args.models) == (50, 0.2, Budget(cost=2.5), ["m1", "m2"])
    assert args.allow_longer

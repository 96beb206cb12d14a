from __future__ import annotations

import subprocess
import sys
from typing import Any

from agentgym_tui.presenters.cells import ENV_WIDTH, Line, arrange_columns, fit, fit_row, shorten_environment
from agentgym_tui.presenters.episode_facts import STEP_COLUMNS, StepRows, answer_parts, fallback_note
from agentgym_tui.presenters.episode_rows import EpisodeRows
from agentgym_tui.presenters.live import ENV_COLUMNS, NAME_WIDTH, EnvironmentRows
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.episode import StreamingAnswer, StreamingToolCall
from agentgym_tui.state.episode_list import EpisodeList
from agentgym_tui.state.query import Sorting
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.inputs import CheckRows
from runner.envs.are.catalog import OFFLINE_SCENARIOS
from runner.events.live import LiveAction
from runner.types import Outcome, ToolCall
from tests.support.console.samples import busy_store, env_health, episode, hostile_store, live, row, step


def text(line: Line) -> str:
    return "".join(cell.text for cell in line)


def cell_texts(source: EnvironmentRows | StepRows, index: int) -> list[str]:
    return [str(cell.text) for cell in source.line(index, 80)]


def test_presenters_import_neither_textual_nor_slow_modules() -> None:
    code = "import sys, agentgym_tui.presenters.episode_facts; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"textual", "nats", "ulid", "yaml", "hydra", "httpx", "sqlite3"} & set(done.stdout.split())


def test_an_environment_row_shows_health_and_results() -> None:
    store = busy_store()
    store.apply_events([live(env_health("Maze", "slow", latency_s=1.25, transport="http"))])
    store.apply_stored([row(n, env="TextCraft", model="qwen", success=n < 3) for n in range(10, 14)])
    rows = EnvironmentRows(store)
    assert [rows.key(index) for index in range(4)] == ["BabyAI", "TextCraft", "Maze", "Wordle"]
    dash = UNKNOWN
    assert cell_texts(rows, 1)[1:5] == ["● embedded", "0% of 4", dash, dash]
    assert cell_texts(rows, 2)[1:8] == ["◐ slow", dash, dash, dash, dash, "1.2 s", "http"]
    assert cell_texts(rows, 3)[1:6] == ["● embedded", "67% oracle", dash, "1", "0.75"]
    assert cell_texts(rows, 4)[1] == "✗ down: not installed"
    assert len(cell_texts(rows, 0)) == len(ENV_COLUMNS)
    store = RunStore()
    store.apply_profile([("lightweight", "Maze", None)])
    assert cell_texts(EnvironmentRows(store), 0)[1] == f"{UNKNOWN} not checked"


def test_a_secret_in_the_name_of_an_endpoint_is_hidden_wherever_the_endpoint_is_named() -> None:
    name, failed = "http://me:hunter22@h:1/v1", "http://you:hunter33@h:2/v1"
    answered = episode(steps=[step(0, endpoint=name, warnings=(f"{failed}: refused",))])
    streamed = episode(outcome=None, steps=[], streaming=StreamingAnswer(endpoint=name, failures=(f"{failed}: no",)))
    lines = [
        *(line for played in (answered, streamed) for line in answer_parts(played, 0)),
        *(fallback_note(played) for played in (answered, streamed)),
    ]
    shown = " ".join(map(text, lines))
    assert shown.count("***@h:1") == 4 and shown.count("***@h:2") == 2 and "hunter" not in shown


def test_the_scenarios_of_are_are_told_apart_in_narrow_columns() -> None:
    names = [*(f"are:{id}" for id in OFFLINE_SCENARIOS), "are:scenario_mcp_demo", "are:scenario_hf_demo_mcp"]
    store, episodes = RunStore(), EpisodeList()
    stored = [row(n, env=name) for n, name in enumerate(names)]
    store.apply_stored(stored)
    episodes.set_stored(stored, [])
    rows = EnvironmentRows(store)
    cells = [EpisodeRows(episodes).line(index, 80)[1] for index in range(len(names))]
    listed = {fit(cell.fitted(ENV_WIDTH), ENV_WIDTH) for cell in cells}
    shown = [fit(rows.line(index, 80)[0].fitted(NAME_WIDTH), NAME_WIDTH) for index in range(len(names))]
    checks = [text(CheckRows([sanitize_line(name) for name in names], set()).line(index, 19)) for index in range(7)]
    assert len({*shown}) == len(listed) == len({*checks}) == len(names)
    assert "are:…tutori…" in shown and "[ ] are:…tutorial" in checks
    assert (shorten_environment(names[0], 21), shorten_environment("a" * 30, 9)) == (names[0], "a" * 30)


def test_errors_have_a_column_of_their_own() -> None:
    store = RunStore()
    failed: dict[str, Any] = {"model": "qwen", "outcome": Outcome.ERROR, "success": False, "reward": 0.0}
    store.apply_stored([*(row(n, **failed) for n in range(6, 12)), *(row(n, model="qwen") for n in range(6))])
    store.apply_stored([row(n, env="Maze", **failed) for n in range(2)])
    rows = EnvironmentRows(store)
    assert [column.title for column in ENV_COLUMNS][2:6:3] == ["success", "reward"]
    assert cell_texts(rows, 0)[2:6] == ["100% of 6", "6", UNKNOWN, "0.75"]
    assert cell_texts(rows, 1)[2:6] == [UNKNOWN, "2", UNKNOWN, UNKNOWN]
    assert [EnvironmentRows(store, Sorting("errors", descending)).key(0) for descending in (False, True)] == [
        "Maze",
        "Wordle",
    ]
    assert [EnvironmentRows(store, Sorting("success", descending)).key(1) for descending in (False, True)] == [
        "Maze",
        "Maze",
    ]


def test_a_step_row_shows_action_reward_and_cost() -> None:
    action = LiveAction(None, [ToolCall("1", "guess", '{"word": "crane"}')])
    steps = [step(0, action=action), step(1, valid=False, reward=-1.0, tokens=None), step(2, done=True, reward=1)]
    rows = StepRows(episode(0, steps=steps))
    assert cell_texts(rows, 0) == ["0", 'guess {"word": "crane"}', "0.25", "", "1.2 s", "4 ms", "120+30"]
    assert cell_texts(rows, 1)[1:3] == ["✗ invalid: guess 1", "-1"]
    assert cell_texts(rows, 2)[2:4] == ["1", "done"]
    assert cell_texts(StepRows(episode(0, steps=[step(0, refused=True)])), 0)[1].startswith("✗ refused: ")
    assert len(cell_texts(rows, 0)) == len(STEP_COLUMNS)


def test_steps_with_high_numbers_are_told_apart() -> None:
    rows = StepRows(episode(0, steps=[step(10_000), step(10_001)], rounds=10_002))
    layout = arrange_columns(rows.columns, 80)
    shown = ["".join(text for text, _ in fit_row(rows.line(n, 80), rows.columns, layout, 80)) for n in (1, 2)]
    assert [text.split()[0] for text in shown] == ["10000", "10001"]


def test_missing_steps_and_the_streaming_step_have_rows() -> None:
    playing = episode(0, steps=[step(2), step(5)], outcome=None, streaming=StreamingAnswer(text="I think\nso"))
    rows = StepRows(playing)
    assert [rows.key(index) for index in range(len(rows))] == ["gap0", "2", "gap3", "5", "6"]
    assert [cell_texts(rows, index)[1] for index in (0, 2, 4)] == [
        "2 rounds not received",
        "2 rounds not received",
        "… I think so",
    ]
    assert [len(rows.line(index, 80)) for index in (0, 4)] == [2, 2]  # a gap or a streaming step spans the whole line
    rows = StepRows(episode(0, steps=[step(0), step(1)], outcome="interrupted", rounds=7))
    assert len(rows) == 3 and "5 rounds not received" in cell_texts(rows, 2)[1]


def test_the_row_of_a_streaming_step_shows_its_newest_part() -> None:
    def row(**fields: Any) -> str:  # noqa: ANN401
        playing = episode(0, n_steps=0, outcome=None, streaming=StreamingAnswer(**fields))
        return cell_texts(StepRows(playing), 0)[1]

    assert row(endpoint="gateway") == "… waiting for gateway"
    assert row(endpoint="gateway", reasoning="so it\nis") == "thinking: … so it is"
    assert row(reasoning="so", text="I go") == "… I go"
    assert row(text="I go", calls=(StreamingToolCall(0, "move", '{"to"'),)) == '… move {"to"'
    assert row(failures=("a: away",), text="I go") == "↷ … I go"
    assert row(reasoning="x" * 100).startswith("thinking: …xx")


def test_a_row_with_hostile_text_has_a_badge() -> None:
    store = hostile_store()
    rows = EnvironmentRows(store)
    assert all(cell_texts(rows, index)[0].startswith("⚠ ") for index in range(len(rows)))
    steps = StepRows(next(each for each in store.episodes.values() if each.steps))
    assert "⚠ " in cell_texts(steps, 0)[1]


def test_unscored_episodes_give_no_rate_and_a_family_shows_its_scenarios() -> None:
    store = RunStore()
    store.apply_stored([row(n, env="are:offline", unscored=True) for n in range(2)])
    store.apply_events([live(env_health("are:offline", note="ARE 1.2.0, 2 scenarios: a, b\x1b[2J"))])
    rows = EnvironmentRows(store)
    assert cell_texts(rows, 0)[:3] == ["are:offline", "⚠ ● embedded: ARE 1.2.0, 2 scenarios: a, b␛[2J", "unscored"]
    store.apply_stored([row(5, env="are:offline")])
    assert cell_texts(rows, 0)[2] == "100% oracle"
    interrupted = {"agent": "react", "model": "m", "outcome": Outcome.INTERRUPTED, "success": False}
    store.apply_stored([row(6, env="are:offline", **interrupted)])
    assert cell_texts(rows, 0)[2] == "100% oracle", "an interrupted episode of a model is not rated"

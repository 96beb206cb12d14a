from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from agentgym_tui.commands.keymap import COMMANDS, Keymap
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.environment_rows import ENV_COLUMNS, EnvironmentRows
from agentgym_tui.presenters.model_answer import failover_text, streaming_parts
from agentgym_tui.presenters.number_format import UNKNOWN, format_count, format_duration, format_reward, progress_bar
from agentgym_tui.presenters.pane_titles import transcript_title
from agentgym_tui.presenters.reward_plot import column_chart, moving_success_rate, reward_lines, value_range
from agentgym_tui.presenters.status_line import episode_line, progress_line, status_line, status_lines
from agentgym_tui.presenters.step_rows import STEP_COLUMNS, StepRows
from agentgym_tui.presenters.text_width import cut, cut_middle, cut_start, wrap_text
from agentgym_tui.presenters.welcome import KEYS, READ_ONLY_KEYS, welcome_lines
from agentgym_tui.safe_text import trusted
from agentgym_tui.state.endpoints import Failover
from agentgym_tui.state.models import BusLink, StreamingAnswer, StreamingToolCall
from agentgym_tui.state.rewards import RewardPoint
from agentgym_tui.state.run_store import RunStore
from runner.events.live import LiveAction
from runner.types import ToolCall
from tests.support.console.samples import (
    START,
    busy_store,
    empty_store,
    env_health,
    episode,
    error_store,
    hostile_store,
    live,
    model_health,
    row,
    started,
    step,
    streaming_store,
)


def text(shown: Line) -> str:
    return "".join(cell.text for cell in shown)


def cells(source: EnvironmentRows | StepRows, index: int) -> list[str]:
    return [str(cell.text) for cell in source.line(index, 80)]


def texts(shown: Iterable[Line]) -> list[str]:
    return [text(each) for each in shown]


def test_the_views_need_neither_textual_nor_what_is_slow_to_import() -> None:
    code = "import sys, agentgym_tui.presenters.step_rows; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"textual", "nats", "ulid", "yaml", "hydra", "httpx", "sqlite3"} & set(done.stdout.split())


def test_an_environment_says_how_it_is_and_what_came_of_it() -> None:
    store = busy_store()
    store.apply_events([live(env_health("Maze", "slow", latency_s=1.25, transport="http"))])
    store.apply_stored([row(n, env="TextCraft", model="qwen", success=n < 3) for n in range(10, 14)])
    rows = EnvironmentRows(store)
    assert [rows.key(index) for index in range(4)] == ["BabyAI", "TextCraft", "Maze", "Wordle"]
    dash = UNKNOWN
    assert cells(rows, 1)[1:4] == ["● embedded", "0% of 4", dash]
    assert cells(rows, 2)[1:7] == ["◐ slow", dash, dash, dash, "1.2 s", "http"]
    assert cells(rows, 3)[1:5] == ["● embedded", "67% baseline", "1", "0.75"]
    assert cells(rows, 4)[1] == "✗ down: not installed"
    assert len(cells(rows, 0)) == len(ENV_COLUMNS)


def test_an_environment_nobody_looked_at_is_not_checked() -> None:
    store = RunStore()
    store.apply_profile([("lightweight", "Maze", None)])
    assert cells(EnvironmentRows(store), 0)[1] == f"{UNKNOWN} not checked"


def test_a_step_says_what_was_done_and_what_it_cost() -> None:
    action = LiveAction(None, [ToolCall("1", "guess", '{"word": "crane"}')])
    steps = [step(0, action=action), step(1, valid=False, reward=-1.0, tokens=None), step(2, done=True, reward=1)]
    rows = StepRows(episode(0, steps=steps))
    assert cells(rows, 0) == ["0", 'guess {"word": "crane"}', "0.25", "", "1.2 s", "4 ms", "120+30"]
    assert cells(rows, 1)[1:3] == ["✗ invalid: guess 1", "-1"]
    assert cells(rows, 2)[2:4] == ["1", "done"]
    assert len(cells(rows, 0)) == len(STEP_COLUMNS)


def test_missing_steps_and_the_one_being_played_have_rows() -> None:
    playing = episode(0, steps=[step(2), step(5)], outcome=None, streaming=StreamingAnswer(text="I think\nso"))
    rows = StepRows(playing)
    assert [rows.key(index) for index in range(len(rows))] == ["gap0", "2", "gap3", "5", "6"]
    assert [cells(rows, index)[1] for index in (0, 2, 4)] == [
        "2 rounds not received",
        "2 rounds not received",
        "… I think so",
    ]
    assert [len(rows.line(index, 80)) for index in (0, 4)] == [2, 2]  # they take the whole of the line
    assert [getattr(rows.step(index), "index", None) for index in range(-1, 6)] == [None, None, 2, None, 5, None, None]


def test_rounds_at_the_end_that_did_not_get_here_are_a_row_too() -> None:
    rows = StepRows(episode(0, steps=[step(0), step(1)], outcome="interrupted", rounds=7))
    assert len(rows) == 3 and "5 rounds not received" in cells(rows, 2)[1]


def test_the_status_line_has_the_most_important_first() -> None:
    store = busy_store()
    assert text(status_line(store, "here", 60)) == ("● connected · node pmoves-4090 running · /srv/agentgym/data")
    wide = text(status_line(store, "here", 200))
    assert "/srv/agentgym/data · model tensorzero up · cpu 12% ram 40% · RTX 4090 34% 5.0/16.0 GiB" in wide
    assert len(text(status_line(store, "here", 10))) == 10


def test_the_status_line_says_what_is_wrong() -> None:
    store = error_store()
    shown = text(status_line(store, "here", 200))
    assert "✗ disconnected · node pmoves-4090 ✗ node lost · connection refused" in shown
    store.link.cause = "refused because " * 50
    assert "✗ node lost · refused" in text(status_line(store, "here", 80))
    store.link.cause = ""
    store.apply_events([live(model_health("ollama", "down", "refused"), dropped=4)])
    shown = text(status_line(store, "here", 200))
    assert "model tensorzero up (ollama down)" in shown
    assert "4 dropped" in shown
    store.apply_events([live(started(7), node="other")])
    assert "2 nodes" in text(status_line(store, "here", 200))


@pytest.mark.parametrize(
    ("gateway", "ollama", "said", "missing"),
    [
        ({"status": "up"}, {"status": "up"}, "model gateway up", []),
        ({"status": "up"}, {"status": "down"}, "model gateway up (ollama down)", []),
        ({"status": "slow"}, {"status": "down"}, "model gateway slow (ollama down)", []),
        ({"status": "down"}, {"status": "up"}, "↷ model ollama up, gateway down", ["gateway"]),
        ({"status": "up", "rest_s": 27.0}, {"status": "up"}, "↷ model ollama up, gateway cooling down", ["gateway"]),
        ({"status": "down"}, {"status": "wrong"}, "✗ model gateway down, ollama wrong", ["gateway", "ollama"]),
        ({"status": "unknown"}, {"status": "down"}, "✗ model gateway unknown, ollama down", ["gateway", "ollama"]),
    ],
)
def test_the_status_says_which_endpoint_is_in_use(
    gateway: dict[str, Any], ollama: dict[str, Any], said: str, missing: list[str]
) -> None:
    store = empty_store()
    told = {"cause": None}
    store.apply_events(
        [live(model_health("gateway", **{**told, **gateway}), model_health("ollama", **{**told, **ollama}))]
    )
    assert f" · {said} · cpu" in f" · {text(status_line(store, 'here', 200))}"
    shown = texts(welcome_lines(store, 100, Keymap().key))
    assert [name for name in ("gateway", "ollama") if any(f"model {name}" in each for each in shown)] == missing


def test_a_fall_to_another_endpoint_is_told_in_a_line() -> None:
    fall = Failover("Wordle", ("gateway",), "no connection: http://me:secret@host refused", "ollama", START)
    assert failover_text(fall).startswith("Wordle: gateway failed (no connection: ")
    assert failover_text(fall).endswith("); using ollama")
    assert "secret" not in failover_text(fall)
    assert failover_text(fall._replace(failed=(), endpoint="gateway")) == "Wordle: gateway responds again"


def test_the_transcripts_title_says_who_answers_how_fast() -> None:
    store = streaming_store(fallback=True)
    played = store.running_episodes()[0]
    assert text(transcript_title(played, 0, "", 100)[0]).strip() == (
        "Transcript · step 0 · gateway · 42 tokens/s · first token 400 ms · cost 0.00031"
    )
    assert "step 1 · ↷ ollama · 42 tokens/s" in text(transcript_title(played, 1, "", 100)[0])
    coming = "step 2 · ↷ ollama · ≈ 18 tokens/s · first token 400 ms"
    assert coming in text(transcript_title(played, 2, "", 100)[0])
    assert "↷ ollama instead of gateway" in text(episode_line(store, played, 100))
    asked = streaming_parts(StreamingAnswer(failures=("a: away",)))
    assert [text(part) for part in asked if part] == ["↷ no endpoint has answered", "no answer yet"]


def test_a_batch_says_what_it_has_spent() -> None:
    store = streaming_store()
    batch = store.active_batch()
    assert batch is not None
    shown = text(progress_line(batch, 120, spent=store.usage_of(batch)))
    assert "8.6k tokens · cost 0.00482" in shown


def test_the_row_of_a_step_that_comes_says_what_comes() -> None:
    def row(**fields: Any) -> str:  # noqa: ANN401
        playing = episode(0, n_steps=0, outcome=None, streaming=StreamingAnswer(**fields))
        return cells(StepRows(playing), 0)[1]

    assert row(endpoint="gateway") == "… waiting for gateway"
    assert row(endpoint="gateway", reasoning="so it\nis") == "thinking: … so it is"
    assert row(reasoning="so", text="I go") == "… I go"
    assert row(text="I go", calls=(StreamingToolCall(0, "move", '{"to"'),)) == '… move {"to"'
    assert row(failures=("a: away",), text="I go") == "↷ … I go"
    assert row(reasoning="x" * 100).startswith("thinking: …xx")


def test_secrets_in_a_cause_are_masked() -> None:
    store = RunStore()
    store.set_link(BusLink(status="failed", cause="nats://user:hunter22@host: refused", address="nats://u:p4ssw0rd@h"))
    shown = text(status_line(store, "here", 200)) + "".join(texts(welcome_lines(store, 200, Keymap().key)))
    assert "hunter22" not in shown
    assert "p4ssw0rd" not in shown


def test_progress_has_a_bar_and_the_time_left() -> None:
    store = busy_store()
    batch = store.active_batch()
    assert text(progress_line(batch, 80)) == (
        "████░░░░░░░░░ 3/10 · Wordle · time left 3:21 · success 2 of 3 · mean reward 0.5"
    )
    assert batch is not None
    batch.n_planned, batch.status = 0, "paused"
    assert "░ 3/– · Wordle · paused".replace("–", UNKNOWN) in text(progress_line(batch, 80))  # noqa: RUF001
    assert text(progress_line(None, 80)) == ""


def test_the_line_above_the_steps_says_what_is_watched() -> None:
    store = busy_store()
    running = store.running_episodes()[0]
    shown = text(episode_line(store, running, 120))
    assert shown == "Wordle task 3 · ▶ running · round 2 · reward 0.5 · oracle (no model) · 2.5 s · upstream"
    running.paused, running.n_missing = True, 2
    assert "‖ paused · round 2 · reward 0.5 · oracle (no model) · 2 items missing" in text(
        episode_line(store, running, 120)
    )
    failed = episode(0, outcome="error", error_type="EnvError", model="qwen", mode="compat")
    shown = text(episode_line(store, failed, 120))
    assert "! error: EnvError" in shown
    assert "oracle qwen" in shown
    assert "compat rules" in shown
    assert text(episode_line(store, None, 120)) == "no episode running"


def test_an_episode_before_its_first_step_has_not_taken_no_time() -> None:
    said = text(episode_line(RunStore(), episode(0, n_steps=0, outcome=None, duration_s=None), 200))
    assert "running" in said and "ms" not in said


def test_rewards_are_columns_with_a_success_rate_below() -> None:
    points = [RewardPoint(str(n), n / 4, n == 4, True) for n in range(5)]
    shown = texts(reward_lines(points, 20, 4))
    assert shown == ["      1    ▄█", "      0 ▁▄███", "    20% ▁▁▁▁▂", "5 episodes"]
    assert texts(reward_lines(points, 11, 4))[-1] == "newest 3"
    assert texts(reward_lines(points * 9, 40, 4))[-1].startswith("newest 32 · success ")
    assert len(reward_lines(points, 20, 2)) == 2
    assert reward_lines(points, 20, 0) == []
    assert "no scored episodes yet" in texts(reward_lines([], 40, 4))
    baselines = [point._replace(baseline=True) for point in points]
    assert texts(reward_lines(baselines[-1:], 60, 4))[-1].startswith("1 baseline episode ·")
    assert "5 baseline episodes" in texts(reward_lines(baselines, 40, 4))[-1]
    unrated = [point._replace(rated=False) for point in points]
    assert texts(reward_lines(unrated, 40, 4)) == ["no scored episodes yet"]


def test_an_empty_console_says_what_to_press_and_what_is_missing() -> None:
    shown = texts(welcome_lines(empty_store(), 100, Keymap({"run.form": "f4,R"}).key))
    commands = {command.id: command for command in COMMANDS if command.scope in ("live", "everywhere")}
    assert all(commands[id].help == what for id, what in (*KEYS, *READ_ONLY_KEYS))
    assert [each for each in shown if any(what in each for _, what in KEYS)] == [
        "  r  run the selected environment once",
        "  f4  choose what to run and how",
        "  b  run all environments of a tier",
    ]
    assert any("→ f4  choose the oracle agent" in each for each in shown)
    assert any("ALFWorld: not installed" in each and "agentgym-runner --list-envs" in each for each in shown)
    assert any("no model checked yet" in each and "oracle" in each for each in shown)
    assert next(each for each in shown if "no model" in each or "ALFWorld" in each).startswith("  no model")


def test_an_empty_console_does_not_say_that_nothing_was_played_where_something_is_stored() -> None:
    store = empty_store()
    assert text(welcome_lines(store, 80, Keymap().key)[0]).startswith("Nothing is running yet")
    store.apply_stored([])
    assert text(welcome_lines(store, 80, Keymap().key)[0]).startswith("Nothing has been run yet")
    store.apply_stored([row(0)])
    headline = text(welcome_lines(store, 80, Keymap().key)[0])
    assert headline == "Nothing is running; 2 lists 1 stored episode. Press"


CAUSE = (
    "/proc/foo/logs cannot be created: No such file or directory; "
    + "so " * 60
    + "choose another folder with --data-dir"
)


@pytest.mark.parametrize("width", [56, 76, 200])
def test_the_whole_cause_of_a_failure_can_be_read(width: int) -> None:
    store = RunStore()
    store.set_link(BusLink(status="failed", cause=CAUSE))
    shown = texts(welcome_lines(store, width, Keymap().key))
    assert max(map(len, shown)) <= width
    assert CAUSE in " ".join(each.strip() for each in shown)
    assert shown[0] == "Missing"
    assert any("→ N  retries" in each for each in shown)
    busy = busy_store()
    busy.set_link(BusLink(status="failed", cause=CAUSE[-100:]))
    assert CAUSE[-100:] in " ".join(
        each.strip() for each in texts(status_lines(busy, "here", width, max_cause_lines=3))
    )


def test_a_console_that_only_looks_offers_nothing_that_would_be_refused() -> None:
    store = RunStore()
    store.set_link(BusLink(status="failed", cause="no node has run in /tmp/x; name a bus with --nats"))
    shown = texts(welcome_lines(store, 80, Keymap().key, "watching only"))
    assert any("→ agentgym-tui watch --nats URL" in each for each in shown)
    assert "watching only" in shown
    assert not any(what in each for each in shown for _, what in KEYS)
    assert not any("→ N" in each or "agentgym-tui launch" in each for each in shown)


def test_a_console_that_only_looks_at_a_bus_names_the_events_and_one_of_files_does_not() -> None:
    store = RunStore()
    store.set_link(BusLink(status="connected"))
    assert "  3  all bus messages" in texts(welcome_lines(store, 80, Keymap().key, "watching only"))
    store.set_link(BusLink(status="none"))
    assert not any("bus" in each for each in texts(welcome_lines(store, 80, Keymap().key, "files only")))


def test_a_node_that_starts_needs_no_command() -> None:
    store = RunStore()
    store.set_link(BusLink(status="starting"))
    assert texts(welcome_lines(store, 80, Keymap().key))[-1] == "  ○ node starting"


def test_the_progress_of_a_lost_node_has_no_time_left() -> None:
    store = error_store()
    shown = text(progress_line(store.active_batch(), 80, lost=store.all_nodes_lost))
    assert "✗ node lost" in shown
    assert "time left" not in shown


def test_the_outcome_stays_however_long_the_names_are() -> None:
    shown = text(episode_line(busy_store(), episode(0, env="E" * 60, outcome="error", error_type="T" * 60), 70))
    assert "E…" in shown
    assert "! error: T" in shown


def test_a_row_says_that_it_holds_hostile_bytes() -> None:
    store = hostile_store()
    rows = EnvironmentRows(store)
    assert all(cells(rows, index)[0].startswith("⚠ ") for index in range(len(rows)))
    steps = StepRows(next(each for each in store.episodes.values() if each.steps))
    assert "⚠ " in cells(steps, 0)[1]


def test_hostile_text_is_visible_and_harmless() -> None:
    store = hostile_store()
    shown = text(status_line(store, "here", 200))
    assert "␛[2J" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, UNKNOWN),
        (float("inf"), UNKNOWN),
        (0.0042, "4 ms"),
        (0.9999, "1.0 s"),
        (1.25, "1.2 s"),
        (59.96, "1:00"),
        (201, "3:21"),
        (7401, "2:03:21"),
        (1e300, "> 99 h"),
        (-1, "0 ms"),
    ],
)
def test_durations_are_for_people(seconds: float | None, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.25, "0.25"), (-1, "-1"), (-0.0, "0"), (-0.0001, "0"), (1e9, "1e+09"), (None, UNKNOWN)],
)
def test_rewards_are_short(value: float | None, shown: str) -> None:
    assert format_reward(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(950, "950"), (1_000, "1.0k"), (9_999, "10k"), (12_345, "12k"), (10**400, "> 1T"), (-5, "-5")]
)
def test_quantities_are_short(value: int, shown: str) -> None:
    assert format_count(value) == shown


def test_plots_take_numbers_of_any_size() -> None:
    big = 1.7e308
    assert column_chart([-big, 0, big], 9, 1, -big, big) == ["▁▄█"]
    assert column_chart([1.0], 0, 1, 0, 1) == []
    assert column_chart([1.0], 1, 1, 0, 0) == ["▁"]
    assert value_range([]) == (0.0, 1.0)
    assert moving_success_rate([True, False, False, True], 2) == [1.0, 0.5, 0.0, 0.5]
    assert progress_bar(2.0, 4) == "████"


def test_wide_characters_are_cut_by_their_width() -> None:
    assert cut(trusted("漢字漢字"), 5) == "漢字…"
    assert cut(trusted("漢字"), 4) == "漢字"
    assert cut(trusted("漢字"), 0) == ""


def test_what_tells_two_long_names_apart_is_kept() -> None:
    assert cut_start(trusted("/home/someone/agentgym/data"), 14) == "…agentgym/data"
    names = [cut_middle(trusted(f"organisation/model-of-many-words-{end}"), 20) for end in ("7b-awq", "7b-gguf")]
    assert names == ["organisat…rds-7b-awq", "organisat…ds-7b-gguf"]
    assert cut_middle(trusted("漢字漢字漢字"), 6) == "漢…字"
    assert [cut_middle(trusted("abc"), width) for width in (0, 1, 2, 3)] == ["", "…", "…c", "abc"]


def test_what_has_no_room_says_so() -> None:
    assert wrap_text(trusted("one two three\nfour"), 8, 9) == ["one two", "three", "four"]
    assert wrap_text(trusted("one two three\nfour"), 8, 2) == ["one two", "three f…"]
    assert wrap_text(trusted("one"), 8, 0) == []

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentgym_tui.commands import Keymap
from agentgym_tui.presenters.cells import cut, line_width
from agentgym_tui.presenters.episode import episode_heading, error_text
from agentgym_tui.presenters.episode_rows import EPISODE_COLUMNS, EpisodeRows, empty_episodes_lines, list_summary
from agentgym_tui.presenters.number_format import UNKNOWN, format_time
from agentgym_tui.presenters.status_line import outcome_cell
from agentgym_tui.safe_text import MAX_LINE_CHARS, has_unsafe_chars
from agentgym_tui.state.episode_list import EpisodeList, UnreadableFile, entry_key, select_rows
from runner.query.syntax import QueryError
from runner.types import Outcome, WorkerInfo
from tests.support.console.line_views import line_text
from tests.support.console.samples import HOSTILE, HUGE, START, episode, episode_id, hostile_episode, row, step

UNREADABLE = UnreadableFile(Path("/srv/\x1b[2J.json"), "it is\nnot JSON \u202e")


def episode_list(n: int = 3) -> EpisodeList:
    episodes = EpisodeList()
    episodes.set_stored([row(number) for number in range(n)], [UNREADABLE])
    return episodes


def shown_keys(episodes: EpisodeList) -> list[str]:
    return [entry_key(entry) for entry in episodes.shown]


def test_stored_and_running_episodes_share_a_list_newest_first_unreadable_files_last() -> None:
    episodes = episode_list(2)
    assert episodes.update_live([episode(1, outcome=None), episode(3, outcome=None), episode(2)])
    assert shown_keys(episodes) == [*(episode_id(n) for n in (3, 2, 1, 0)), str(UNREADABLE.path)]
    assert (episodes.n_episodes, episodes.n_running, episodes.n_unreadable) == (4, 1, 1)


def test_a_stored_row_takes_precedence_over_a_live_episode_whose_start_and_end_change_the_list() -> None:
    episodes = episode_list(1)
    episodes.update_live([episode(0, outcome=None)])
    assert episodes.get(episode_id(0)) == row(0)
    assert episodes.n_running == 0
    assert episodes.update_live([episode(6, outcome=None), episode(7, outcome=None, node_lost=True)])
    assert episodes.n_running == 1
    episodes, running = episode_list(), episode(5, outcome=None)
    assert episodes.update_live([running])
    running.reward = 3.0
    assert not episodes.update_live([running])
    running.outcome = "failure"
    assert episodes.update_live([running])


def test_times_without_a_time_zone_are_sorted_with_the_others() -> None:
    episodes = EpisodeList()
    episodes.set_stored([row(0), row(1, started_at=datetime(2030, 1, 1)), row(2)])  # noqa: DTZ001
    assert shown_keys(episodes) == [episode_id(n) for n in (1, 2, 0)]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("", (3, 2, 1, 0)),
        ("WORDLE", (3, 2, 0)),
        ("wordle error", (2,)),
        ("stepfailed", (2,)),
        ("running", (3,)),
        ("qwen babyai", (1,)),
        ("  wordle   #0 ", (0,)),
        ("00002", (2,)),
        ("wordle babyai", ()),
    ],
)
def test_a_filter_keeps_entries_that_contain_all_words(words: str, numbers: tuple[int, ...]) -> None:
    episodes = EpisodeList()
    failed = row(2, outcome=Outcome.ERROR, error_type="StepFailed")
    episodes.set_stored([row(0), row(1, env="BabyAI", model="qwen35"), failed])
    episodes.update_live([episode(3, outcome=None)])
    episodes.search(words)
    assert shown_keys(episodes) == [episode_id(n) for n in numbers]
    assert episodes.n_episodes == 4


def test_a_filter_survives_a_reload_and_matches_unreadable_files() -> None:
    episodes = episode_list()
    episodes.search("unreadable json")
    episodes.set_stored([row(n) for n in range(5)], [UNREADABLE])
    assert shown_keys(episodes) == [str(UNREADABLE.path)]


@pytest.mark.parametrize(
    "query", ["", "wordle", "#todo", "tag:to*", "-tag:todo", "note:door OR env:babyai", "qwen tag:todo", "reward>=0"]
)
def test_rows_are_selected_as_the_list_shows_them(query: str) -> None:
    rows = [row(0), row(1, env="BabyAI", model="qwen35"), row(2, outcome=Outcome.ERROR)]
    tags, lookups = {episode_id(1): ("todo",)}, {"note": lambda words, _: [episode_id(2)] if words == "door" else []}
    episodes = EpisodeList()
    episodes.add_lookups(lookups)
    episodes.set_stored(rows)
    episodes.set_tags(tags)
    assert episodes.search(query) is None
    assert list(select_rows(reversed(rows), query, lookups, tags)) == episodes.shown
    with pytest.raises(QueryError, match="nosuch"):
        select_rows([], f"{query} nosuch:x", lookups, tags)


def test_neighbors_stop_at_the_ends_and_a_filtered_out_episode_leads_to_the_top() -> None:
    episodes = episode_list()
    assert episodes.neighbor(episode_id(2), 1) == episode_id(1)
    assert episodes.neighbor(episode_id(2), -1) is None
    assert episodes.neighbor(str(UNREADABLE.path), 1) is None
    episodes.search("#1")
    assert episodes.neighbor(episode_id(2), 1) == episode_id(1)
    assert episodes.get(episode_id(2)) == row(2)


def test_a_row_has_one_safe_cell_per_column() -> None:
    episodes = EpisodeList()
    episodes.set_stored(
        [row(0, env=HOSTILE, agent=HOSTILE, model=HUGE, node=HOSTILE, error_type=HOSTILE)], [UNREADABLE]
    )
    episodes.update_live([hostile_episode(outcome=None), hostile_episode(91, HUGE, outcome=HOSTILE)])
    rows = EpisodeRows(episodes)
    assert len(rows) == 4
    for index in range(len(rows)):
        line = rows.line(index, 80)
        assert len(line) == (2 if index == 3 else len(EPISODE_COLUMNS))
        assert any("⚠ " in cell.text for cell in line)
        assert not any(has_unsafe_chars(cell.text) or "\n" in cell.text for cell in line)
        assert max(len(cell.text) for cell in line) <= MAX_LINE_CHARS + 2
    assert rows.key(3) == str(UNREADABLE.path)
    path = Path("/srv/a/folder/with/a/long/name/x.json")
    episodes.set_stored([], [UnreadableFile(path, f"{path} is damaged: JSON ends too early")])
    shown = line_text(EpisodeRows(episodes).line(len(episodes.shown) - 1, 80))
    assert shown == "✗ unreadablex.json is damaged: JSON ends too early", "without its folder"


def test_the_heading_is_safe_for_every_kind_of_entry() -> None:
    for entry in (hostile_episode(), row(0, env=HOSTILE, batch_id=HOSTILE), UNREADABLE, None):
        for line in episode_heading(entry, "loading …", "1 of 2", 80):
            assert not has_unsafe_chars(line_text(line))
            assert "\n" not in line_text(line)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"flags": "loop,truncated"}, "✓ success ⚑loop"),
        ({"flags": "truncated"}, "✓ success"),
        ({"flags": "loop,invalid", "outcome": Outcome.TRUNCATED}, "… limit of 3 rounds ⚑2"),
        ({"flags": HOSTILE}, None),
    ],
)
def test_the_list_shows_flags_behind_the_outcome(fields: dict[str, Any], expected: str | None) -> None:
    episodes = EpisodeList()
    episodes.set_stored([row(0, **fields)])
    text = cut(EpisodeRows(episodes).line(0, 80)[3].fitted(24), 24)
    assert not has_unsafe_chars(text)
    assert expected in (None, text)


def test_the_heading_names_flags_and_where_they_begin() -> None:
    found = episode(0, found_flags=(("loop", 3), ("truncated", None)))
    for entry, expected in ((found, "⚑ loop from step 3, truncated"), (row(0, flags="loop"), "⚑ loop")):
        assert f" · {expected} · " in line_text(episode_heading(entry, "", "", 160)[1])


def test_the_heading_shows_the_episode_and_the_first_line_of_its_error() -> None:
    failed = episode(7, outcome="error", error_type="AgentFault", error_message="no answer\nTraceback …", seed=123456)
    lines = [line_text(line) for line in episode_heading(failed, "", "2 of 9", 120)]
    assert lines[0] == "Wordle task 7 · ! error: AgentFault · 2 of 9 · reward 0.75 · 3 rounds · 3.8 s"
    assert lines[1].startswith(f"agent oracle · model {UNKNOWN} · tokens 450 · data upstream")
    assert lines[2].startswith(episode_id(7))
    assert "seed 123456" in lines[2]
    assert lines[3] == error_text(failed) == "✗ AgentFault: no answer"
    assert error_text(episode()) == ""


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (WorkerInfo(host="far", id="slot 3", kind="local"), "slot 3"),
        (WorkerInfo(host="pmoves-4090", id="worker 2", kind="process"), "worker 2"),
        (WorkerInfo(host="gpu\x1b[2J-7", id="ab12" * 8, kind="ray"), "worker ⚠ ab12ab12ab12 on gpu␛[2J-7"),
    ],
)
def test_the_heading_names_the_worker_and_another_host(worker: WorkerInfo, expected: str) -> None:
    known = episode(0, worker=worker, node="pmoves-4090")
    assert line_text(episode_heading(known, "", "", 160)[1]).endswith(f" · {expected}")


def test_huge_numbers_are_abbreviated() -> None:
    lines = episode_heading(episode(0, seed=10**5000, task_index=-(10**5000), attempt=10**5000), "", "", 120)
    assert "seed > 1T" in line_text(lines[2])
    assert "attempt 2 · " in line_text(episode_heading(episode(0, attempt=1), "", "", 120)[2])
    episodes = EpisodeList()
    episodes.set_stored([row(0, task_index=5, attempt=1)])
    assert EpisodeRows(episodes).line(0, 80)[2].text == "5·2"
    episodes.set_stored([row(0, task_index=10**5000)])
    episodes.search("#>")
    assert len(episodes.shown) == 1


def test_times_out_of_range_are_shown_as_unknown() -> None:
    assert len(format_time(START)) == 11
    assert format_time(datetime.max.replace(tzinfo=UTC)) in (UNKNOWN, "12-31 23:59")
    assert format_time(datetime.min.replace(tzinfo=UTC)) in (UNKNOWN, "01-01 00:00")


def test_the_summary_counts_episodes_and_unreadable_files() -> None:
    episodes = episode_list()
    episodes.update_live([episode(9, outcome=None)])
    counted = "Episodes · 4 episodes · ▶ 1 running · ✗ 1 file cannot be read"
    assert line_text(list_summary(episodes, "", "esc", 120)) == counted
    episodes.search("#1")
    assert "1 match #1" in line_text(list_summary(episodes, "reading …", "esc", 120))
    assert "reading …" in line_text(list_summary(episodes, "reading …", "esc", 120))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_summary_shows_a_filter_of_any_length_and_the_key_that_clears_it(width: int) -> None:
    episodes = episode_list()
    episodes.search("wordle " * 20)
    summary = list_summary(episodes, "reading 3 of 9 files", "esc", width)
    assert "match wordle wordle" in line_text(summary) and "(esc clears)" in line_text(summary)
    assert line_width(summary) <= width


@pytest.mark.parametrize(
    ("fields", "width", "expected"),
    [
        ({"outcome": "success"}, 80, "✓ success"),
        ({"outcome": "error", "error_type": "AgentFault"}, 80, "! error: AgentFault"),
        ({"outcome": "odd"}, 80, "odd"),
        ({"outcome": None}, 80, "▶ running"),
        ({"outcome": None, "paused": True}, 80, "‖ paused"),
        ({"outcome": None, "node_lost": True}, 80, "✗ node lost"),
        ({"outcome": "truncated", "n_steps": 15}, 80, "… stopped at the limit of 15 rounds"),
        ({"outcome": "truncated", "n_steps": 15}, 24, "… limit of 15 rounds"),
        (
            {"outcome": "truncated", "steps": [step(0, done=True)], "rounds": 1},
            80,
            "… stopped by the environment after 1 round",
        ),
        ({"outcome": "timeout", "duration_s": 300.0}, 24, "◔ timeout after 5:00"),
        ({"outcome": "failure", "steps": [step(0, valid=False)]}, 80, "✗ failure: too many invalid actions"),
        ({"outcome": "failure", "steps": [step(0, done=True)]}, 80, "✗ failure"),
    ],
)
def test_an_outcome_names_the_state_or_why_the_episode_ended(fields: dict[str, Any], width: int, expected: str) -> None:
    assert outcome_cell(episode(1, **fields), width).text == expected


def test_a_fallback_endpoint_is_shown_in_the_row_and_the_heading() -> None:
    episodes = EpisodeList()
    episodes.set_stored([row(1, agent="react", model="m", fallback="ollama", cost=0.0125), row(0)])
    rows = EpisodeRows(episodes)
    agents = [rows.line(index, 120)[7].text for index in range(2)]
    assert agents == ["↷ react m", "oracle"]
    heading = line_text(episode_heading(episodes.get(episode_id(1)), "", "", 120)[1])
    assert heading.startswith("agent react · model m · ↷ answered by ollama · tokens 450 · cost 0.0125")
    steps = [step(0, endpoint="ollama", warnings=["gateway: away"]), step(1, endpoint="gateway")]
    assert episode(steps=steps).fallback == "ollama"
    assert episode(steps=steps[1:]).fallback is None


def test_the_shape_of_requests_is_shown_in_the_heading_of_live_and_stored_episodes() -> None:
    live = episode(1, agent="react", model="m", steps=[step(0, shape="tools as text"), step(1)])
    for entry in (live, row(1, agent="react", model="m", shape="tools as text")):
        heading = line_text(episode_heading(entry, "", "", 120)[1])
        assert heading.startswith("agent react · model m · tools as text · ")
    episodes = EpisodeList()
    episodes.set_stored([row(1, shape="tools as text"), row(0)])
    for query, keys in (("shape:none", [episode_id(0)]), ('shape:"tools as text"', [episode_id(1)])):
        episodes.search(query)
        assert shown_keys(episodes) == keys


def test_an_empty_list_shows_the_next_action() -> None:
    episodes = EpisodeList()
    assert "press" in "".join(map(line_text, empty_episodes_lines(episodes, Keymap().key, "", 80)))
    assert "watching only" in "".join(map(line_text, empty_episodes_lines(episodes, Keymap().key, "watching only", 80)))
    episodes.search("x\x1b")
    shown = "".join(map(line_text, empty_episodes_lines(episodes, Keymap().key, "", 80)))
    assert "esc" in shown
    assert not has_unsafe_chars(shown)

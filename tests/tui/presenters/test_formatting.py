from __future__ import annotations

from unittest.mock import Mock

import pytest

from agentgym_tui.presenters.cells import Cell, cut, cut_middle, cut_start, wrap_text
from agentgym_tui.presenters.live import column_chart, moving_success_rate, reward_lines, value_range
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_interval,
    format_percent,
    format_reward,
    format_share,
    progress_bar,
)
from agentgym_tui.safe_text import mask_secrets, masked_line, masked_rows, sanitize_message
from agentgym_tui.state.servers import RewardPoint
from runner.util import display_text
from tests.support.console.line_views import line_texts


def test_the_secrets_of_the_environment_are_collected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    collect = Mock(wraps=display_text._secret_forms)
    monkeypatch.setattr(display_text, "_secret_forms", collect)
    monkeypatch.setenv("SOME_API_KEY", "hunter2-secret")
    assert masked_line("key hunter2-secret") == mask_secrets("key hunter2-secret") == "key ***"
    assert collect.call_count == 1


def test_a_message_shows_neither_a_secret_nor_a_control_character() -> None:
    text = "nats://user:hunter2@host:4222 refused\x1b[2J\nagain"
    for shown in (sanitize_message(text), Cell(masked_line(text)).text, masked_rows(text)):
        assert "hunter2" not in shown and "nats://***@host:4222 refused␛[2J" in shown
        assert "\x1b" not in shown


def test_rewards_are_drawn_as_columns_above_the_success_rate() -> None:
    points = [RewardPoint(str(n), n / 5, n == 5, True, "react", "m") for n in range(6)]
    shown = line_texts(reward_lines(points, 20, 4))
    assert shown == ["      1    ▂▅█", "      0 ▁▃▆███", "    17% ▁▁▁▁▁▁", "6 episodes"]
    failed = points[1]._replace(reward=None, success=None, rated=False, error=True)
    shown = line_texts(reward_lines([points[0], failed, *points[2:]], 60, 5))
    assert shown[2:4] == ["        ✗!✗✗✗ ", "    20% ▁ ▁▁▁▂"]
    assert shown[4] == "6 episodes · success 20% of last 5 · ! 1 error"
    assert line_texts(reward_lines(points, 14, 4))[-1] == "6 episodes"
    assert line_texts(reward_lines(points * 9, 40, 4))[-1].startswith("newest 32 · success ")
    assert len(reward_lines(points, 20, 2)) == 2
    assert reward_lines(points, 20, 0) == []
    baselines = [point._replace(agent="oracle", model=None) for point in points]
    others = [point._replace(agent="random", reward=9.0) for point in baselines]
    assert line_texts(reward_lines([*others, *baselines], 40, 4)) == line_texts(reward_lines(baselines, 40, 4))
    models = [*points, points[0]._replace(model="other")]
    assert line_texts(reward_lines(models, 60, 4))[-1].startswith("7 episodes · mixed ·")
    unknown = [point._replace(success=None) for point in points]
    assert line_texts(reward_lines(unknown, 40, 4))[-1] == "6 episodes · success unknown"
    assert "of last 6" in line_texts(reward_lines([*unknown, *points], 40, 4))[-1]


def test_a_few_rewards_have_a_row_each_with_what_came_of_the_episode() -> None:
    won, lost = RewardPoint("0", 1.0, True, True, "react", "m"), RewardPoint("1", 0.5, False, True, "react", "m")
    error = RewardPoint("2", None, None, False, "react", "m", error=True)
    assert line_texts(reward_lines([won, lost, error, lost._replace(success=None)], 41, 6)) == [
        "      1 ✓ success    ████████████████████",
        "    0.5 ✗ no success ██████████",
        "        ! error      ",
        "    0.5 ? unknown    ██████████",
        "4 episodes · success 50% of last 2",
    ]
    assert line_texts(reward_lines([won, error], 60, 6))[-1] == "2 episodes · success 100% of last 1 · ! 1 error"
    assert line_texts(reward_lines([won, lost], 20, 2))[0].strip() == "0.5 ✗ no success"
    baseline = lost._replace(agent="oracle", model=None)
    assert line_texts(reward_lines([baseline], 60, 4))[-1].startswith("1 episode · oracle ·")
    assert line_texts(reward_lines([won._replace(rated=False)], 40, 4)) == ["no scored episodes yet"]
    assert line_texts(reward_lines([], 40, 4)) == ["no scored episodes yet"]


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
def test_durations_are_formatted(seconds: float | None, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.25, "0.25"), (-1, "-1"), (-0.0, "0"), (-0.0001, "0"), (1e9, "1e+09"), (None, UNKNOWN)]
)
def test_rewards_are_formatted(value: float | None, shown: str) -> None:
    assert format_reward(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(950, "950"), (1_000, "1.0k"), (9_999, "10k"), (12_345, "12k"), (10**400, "> 1T"), (-5, "-5")]
)
def test_counts_are_formatted(value: int, shown: str) -> None:
    assert format_count(value) == shown


@pytest.mark.parametrize(
    ("n", "shown"), [(0, "0%"), (1, "<1%"), (2, "1%"), (150, "50%"), (298, "99%"), (299, ">99%"), (300, "100%")]
)
def test_no_percentage_is_rounded_onto_nothing_or_all(n: int, shown: str) -> None:
    assert format_share(n, 300) == format_percent(100 * n / 300) == shown
    assert format_interval((n / 300, 1.0)) == f"{shown.removesuffix('%')}-100%"
    assert (format_interval(None), format_interval((0.414, 0.615))) == (UNKNOWN, "41-62%")


def test_plots_accept_numbers_of_any_size() -> None:
    big = 1.7e308
    assert column_chart([-big, 0, big], 9, 1, -big, big) == ["▁▄█"]
    assert column_chart([1.0], 0, 1, 0, 1) == []
    assert column_chart([1.0], 1, 1, 0, 0) == ["▁"]
    assert value_range([]) == (0.0, 1.0)
    assert moving_success_rate([True, False, False, True], 2) == [1.0, 0.5, 0.0, 0.5]
    assert progress_bar(2.0, 4) == "████"


def test_wide_characters_are_cut_by_their_width() -> None:
    assert cut("漢字漢字", 5) == "漢字…"
    assert cut("漢字", 4) == "漢字"
    assert cut("漢字", 0) == ""


def test_cut_names_keep_their_distinctive_parts() -> None:
    assert cut_start("/home/someone/agentgym/data", 14) == "…agentgym/data"
    names = [cut_middle(f"organisation/model-of-many-words-{end}", 20) for end in ("7b-awq", "7b-gguf")]
    assert names == ["organisat…rds-7b-awq", "organisat…ds-7b-gguf"]
    assert cut_middle("漢字漢字漢字", 6) == "漢…字"
    assert cut_start("漢\u0301\u0302abc", 4) == "…abc"
    assert [cut_middle("abc", width) for width in (0, 1, 2, 3)] == ["", "…", "…c", "abc"]


def test_wrapped_text_beyond_the_last_line_is_cut_with_a_mark() -> None:
    assert wrap_text("one two three\nfour", 8, 9) == ["one two", "three", "four"]
    assert wrap_text("one two three\nfour", 8, 2) == ["one two", "three f…"]
    assert wrap_text("one", 8, 0) == []

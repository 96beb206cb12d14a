from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.episode_list import EpisodeList, UnreadableFile
from agentgym_tui.state.episode_query import MAX_CHARS, EpisodeQuery, exact_terms
from runner.types import Outcome
from tests.support.console.samples import episode_id, row

ROWS = [
    row(0, env="Maze", agent="react", model="qwen3"),
    row(1, env="Maze", agent="react", model="qwen3-coder", outcome=Outcome.ERROR),
    row(2, env="Maze run", agent="oracle", task_index=10**18),
    row(3, env="maze", agent="react", model="qwen3", outcome=Outcome.TIMEOUT, mode="compat"),
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", [3, 2, 1, 0]),
        ("env=MAZE", [3, 1, 0]),
        ("env=maze_run", [2]),
        ("model=qwen3", [3, 0]),
        ("model=", [2]),
        ("env=maze outcome=error|timeout", [3, 1]),
        ("env=maze coder", [1]),
        ("task=0 model=qwen3", [0]),
        ("task=1000000000000000000", []),
        ("unknown=maze", []),
        ("mode=compat", [3]),
    ],
)
def test_a_filter_has_words_and_exact_values(text: str, shown: list[int]) -> None:
    episodes = EpisodeList()
    episodes.set_stored(ROWS, [UnreadableFile(Path("env=maze.json"), "no JSON")])
    episodes.search(text)
    found = [entry.episode_id for entry in episodes.shown if not isinstance(entry, UnreadableFile)]
    assert found == [episode_id(number) for number in shown]


@given(st.text(max_size=60), st.text(max_size=60))
def test_exact_terms_find_their_episode_unless_they_are_left_out(env: str, model: str) -> None:
    terms = exact_terms(env=env, model=model, outcome=("success", "error"))
    assert len(terms) <= MAX_CHARS and not has_unsafe_chars(terms)
    assert EpisodeQuery(terms).matches(row(env=env, model=model), lambda: "")
    assert not EpisodeQuery(terms).matches(row(env=env, model=model, outcome=Outcome.TIMEOUT), lambda: "")

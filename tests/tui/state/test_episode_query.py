from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.episode_list import EPISODE_FIELDS, EpisodeList, UnreadableFile, entry_key, exact_terms
from agentgym_tui.state.query import MAX_CHARS, Query
from runner.types import Outcome
from tests.support.console.samples import episode, episode_id, row

ROWS = [
    row(0, env="Maze", agent="react", model="qwen3", flags="loop,truncated"),
    row(1, env="Maze", agent="react", model="qwen3-coder", outcome=Outcome.ERROR, flags="", failure="error: timeout"),
    row(2, env="Maze run", agent="oracle", task_index=10**18),
    row(3, env="maze", agent="react", model="qwen3", outcome=Outcome.TIMEOUT, mode="compat"),
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", [3, 2, 1, 0]),
        ("env:MAZE", [3, 1, 0]),
        ('env:"maze run"', [2]),
        ("model=qwen3", [3, 0]),
        ("model:none", [2]),
        ("env:maze outcome:error,timeout", [3, 1]),
        ("env=maze coder", [1]),
        ("task:0..1 model:qwen*", [1, 0]),
        ("task>5", [2]),
        ("mode:compat OR agent:oracle", [3, 2]),
        ("-env:maze", [2]),
        ("outcome:running", []),
        ("flag:truncated", [0]),
        ("flag:none", [1]),
        ("failure:error*", [1]),
        ("tokens>0 since:2000-01-01 until:2999-01-01 time<1h", [3, 2, 1, 0]),
    ],
)
def test_a_filter_has_words_and_exact_values(text: str, shown: list[int]) -> None:
    episodes = EpisodeList()
    episodes.set_stored(ROWS, [UnreadableFile(Path("env:maze.json"), "no JSON")])
    episodes.search(text)
    found = [entry.episode_id for entry in episodes.shown if not isinstance(entry, UnreadableFile)]
    assert found == [episode_id(number) for number in shown]


@given(st.text(max_size=60), st.text(max_size=60))
def test_exact_terms_find_their_episode_unless_they_are_left_out(env: str, model: str) -> None:
    terms = exact_terms(env=env, model=model, outcome=("success", "error"))
    assert len(terms) <= MAX_CHARS and not has_unsafe_chars(terms)
    query = Query(EPISODE_FIELDS, terms)
    assert query.error is None
    assert query.matches(row(env=env, model=model))
    assert not query.matches(row(env=env, model=model, outcome=Outcome.TIMEOUT))


def test_every_field_reads_stored_and_live_episodes() -> None:
    for name, field in EPISODE_FIELDS.fields.items():
        if field.kind != "lookup":
            get = EPISODE_FIELDS.getter(name)
            assert get(row(0)) == get(row(0))
            get(episode(0, outcome=None))
    assert EPISODE_FIELDS.getter("outcome")(episode(0, outcome=None)) == "running"


def test_an_invalid_query_keeps_the_rows_and_the_valid_one() -> None:
    episodes = EpisodeList()
    episodes.set_stored(ROWS)
    assert episodes.search("env:maze") is None
    shown = list(episodes.shown)
    assert episodes.search("env:maze (") is not None
    assert (episodes.shown, episodes.query_text) == (shown, "env:maze")


def test_tags_and_other_lookups_are_fields_where_they_can_be_answered() -> None:
    episodes = EpisodeList()
    episodes.set_stored(ROWS)
    episodes.set_tags({episode_id(0): ("todo", "a*b")})
    assert episodes.search("tag:TO*") is None
    assert [entry_key(entry) for entry in episodes.shown] == [episode_id(0)]
    episodes.set_tags({episode_id(1): ("todo",)})
    assert [entry_key(entry) for entry in episodes.shown] == [episode_id(1)]
    assert episodes.values_of("tag") == ["todo"]
    assert "tag" in episodes.query_fields and "note" not in episodes.query_fields
    assert "cannot be searched here" in str(episodes.search("note:door"))
    episodes.add_lookups({"note": lambda words, quoted: [episode_id(2)] if words == "door" else (), "tag": find_none})
    assert "note" in episodes.query_fields and episodes.search("tag:todo") is None and episodes.shown
    assert episodes.search('note:door env:"maze run"') is None
    assert [entry_key(entry) for entry in episodes.shown] == [episode_id(2)]


def find_none(value: str, quoted: bool) -> list[str]:
    return []

"""Queries: syntax, errors with their place, and the same answer in memory and in the index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.state.episode_list import model_runs
from runner.query.episodes import FIELDS, episode_condition
from runner.query.fields import Value, ascii_lower, compile_query
from runner.query.syntax import MAX_PARTS, All, Any, Node, Not, QueryError, Term, Word, parse
from runner.store.index_schema import EpisodeRow
from tests.support.results import ResultTable

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
IDS = ("01ARZ3NDEKTSV4RRFFQ69G5FA0", "01ARZ3NDEKTSV4RRFFQ69G5FA1", "01ARZ3NDEKTSV4RRFFQ69G5FB2")


def simplified(node: Node) -> object:
    """Return a tree without the places in the text."""
    match node:
        case Word():
            return node.text
        case Term():
            return (node.field, node.operator, *node.values)
        case Not():
            return {"not": simplified(node.part)}
        case All() | Any():
            return [type(node).__name__, *map(simplified, node.parts)]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", ["All"]),
        ("door", "door"),
        ('"locked  door"', "locked  door"),
        (
            "env:babyai outcome:failure,truncated",
            ["All", ("env", ":", "babyai"), ("outcome", ":", "failure", "truncated")],
        ),
        ("-agent:oracle", {"not": ("agent", ":", "oracle")}),
        ("NOT NOT x", {"not": {"not": "x"}}),
        ("a OR b AND c", ["Any", "a", ["All", "b", "c"]]),
        ("(a OR b) c", ["All", ["Any", "a", "b"], "c"]),
        ('note:"two words",x', ("note", ":", "two words", "x")),
        (r'"say \"no\""', 'say "no"'),
        ("rounds<=3", ("rounds", "<=", "3")),
        ("a-b", "a-b"),
        ("()", ["All"]),
    ],
)
def test_syntax(text: str, tree: object) -> None:
    assert simplified(parse(text)) == tree


@pytest.mark.parametrize(
    ("text", "marked", "reason"),
    [
        ("a (b", "(", "not closed"),
        ("a) b", ")", "closes none"),
        ("x env:", "env:", "needs a value"),
        ('x "abc', '"abc', "quotation mark"),
        ("a OR", "OR", "both sides"),
        ("OR a", "OR", "both sides"),
        ("a NOT", " NOT", "needs a part"),
        ("a reward>much", "reward>much", "needs a number"),
        ("evn:maze", "evn:maze", "did you mean env"),
        ("env>3", "env>3", "compared with :"),
        ("since:yesterday", "since:yesterday", "such as 30m"),
        ("tag:door", "tag:door", "cannot be searched here"),
        ("a " * (MAX_PARTS + 1), None, f"at most {MAX_PARTS}"),
        ("(" * 50, None, "inside one another"),
        ("-" * 50 + "a", None, "inside one another"),
    ],
)
def test_errors_have_their_place(text: str, marked: str | None, reason: str) -> None:
    with pytest.raises(QueryError, match=reason) as caught:
        episode_condition(text, now=NOW)
    if marked is not None:
        assert text[caught.value.start : caught.value.end] == marked


@given(st.text(max_size=60) | st.text(alphabet='ab:-()"\\<>=, ORNT*?[\x00', max_size=40))
def test_any_text_is_a_query_or_has_an_error_in_it(text: str) -> None:
    try:
        condition = episode_condition(text, now=NOW, lookups=dict.fromkeys(("tag", "note"), find_none))
    except QueryError as exc:
        assert 0 <= exc.start < exc.end
    else:
        ResultTable([{}]).select(f"SELECT 1 FROM episodes WHERE {condition.sql}", condition.parameters)


def find_none(value: str, quoted: bool) -> Iterable[str]:
    return ()


ROWS = [
    {
        "episode_id": IDS[n % 3],
        "env": env,
        "model": model,
        "models": model and (model, "small + x", f"{model} + small")[n % 3],
        "agent": agent,
        "outcome": outcome,
        "reward": reward,
        "cost": cost,
        "duration_s": 30.0 * n,
        "rounds": n,
        "shape": ("", "tools as text", "tools as text, folded system")[n % 3],
        "flags": (None, "", "loop", "invalid,truncated")[n % 4],
        "failure": (None, "loop: go … -> A wall")[n % 2],
        "ended_at": NOW - timedelta(hours=n),
    }
    for n, (env, model, agent, outcome, (reward, cost)) in enumerate(
        product(
            ("BabyAI", "Wörd[le]"),
            (None, "qwen3:8b"),
            ("oracle", "re*ct"),
            ("success", "failure"),
            ((0.5, None), (1, 2)),
        )
    )
]
TABLE = ResultTable([row | {"ended_at": f"{row['ended_at']:%Y-%m-%dT%H:%M:%S+00:00}"} for row in ROWS])


def found_in_index(text: str) -> list[int]:
    condition = episode_condition(text, now=NOW, lookups={"tag": lambda tag, _: IDS[:1] if tag == "todo" else ()})
    rows = TABLE.select(f"SELECT rowid - 1 FROM episodes WHERE {condition.sql}", condition.parameters)
    return [number for (number,) in rows]


def found_in_memory(text: str) -> list[int]:
    names = {"id": "episode_id", "time": "duration_s", "since": "ended_at", "until": "ended_at"}

    def getter(name: str) -> Callable[[Mapping[str, object]], Value | tuple[Value, ...]]:
        def get(row: Mapping[str, object]) -> Value | tuple[Value, ...]:
            if name == "flag":
                return () if row["flags"] is None else tuple(str(row["flags"]).split(",")) if row["flags"] else None
            if name == "model":
                runs = model_runs(cast(str | None, row["models"]))
                return runs and (*runs, str(row["model"]))
            value = row[names.get(name, name)]
            assert value is None or isinstance(value, str | float | int | datetime)
            return value

        return get

    def word_test(word: str) -> Callable[[Mapping[str, object]], bool]:
        words = ("env", "agent", "outcome", "model", "models")
        return lambda row: ascii_lower(word) in ascii_lower(" ".join(str(row[name] or "") for name in words))

    lookups = {"tag": lambda tag, _: IDS[:1] if tag == "todo" else ()}
    matches = compile_query(parse(text), FIELDS, getter=getter, word_test=word_test, now=NOW, lookups=lookups)
    return [number for number, row in enumerate(ROWS) if matches(row)]


TERMS = st.sampled_from(
    [
        *("env:babyai", "ENV:BABYAI", "env:wörd*", 'env:"Wörd[le]"', "env:Wörd[le]", "-agent:oracle", "agent:re*ct"),
        *(
            'agent:"re*ct"',
            "model:none",
            "model:QWEN*",
            "model:Small",
            'model:"small + X"',
            "model:s*l",
            "model:?",
            'models:"small + x"',
            "models:small",
            "outcome:success,failure",
            "reward>0.5",
            "reward<=0.5",
            "cost>1",
        ),
        *(
            "-cost<3",
            "rounds:3..5",
            "rounds:..2",
            "rounds=4",
            "time>1m",
            "since:3h",
            "until:2h",
            "id:01arz3ndektsv4rrffq69g5fa",
        ),
        *("tag:todo", "-tag:todo", "baby", "oracle", "8B", "id:*b2", "model:*", 'model:""', "since:2026-11-26T09:00"),
        *("shape:none", "-shape:none", 'shape:"Tools as text"', "shape:*system"),
        *("flag:loop", "-flag:l*d", "flag:none", "flag:tr*,INVALID", 'flag:"l*"', "failure:loop*", "-failure:none"),
    ]
)
QUERIES = st.recursive(
    TERMS,
    lambda inner: st.one_of(
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("{} {}".format, inner, inner),
    ),
    max_leaves=6,
)


@given(QUERIES)
def test_index_and_memory_find_the_same(text: str) -> None:
    assert found_in_index(text) == found_in_memory(text)


def test_terms_select_what_they_name() -> None:
    assert {ROWS[n]["env"] for n in found_in_index("env:babyai")} == {"BabyAI"}
    assert {ROWS[n]["model"] for n in found_in_index("model:none")} == {None}
    assert found_in_index("model:small rounds<12") == [8, 10, 11]
    assert found_in_index("model:qwen3:8b rounds<12") == [8, 9, 10, 11]
    assert found_in_index("models:qwen3:8b rounds<12") == [9]
    assert found_in_index("time:90s") == [3]
    assert found_in_index("since:90m") == [0, 1]
    assert found_in_index("rounds:2..3 OR rounds>29") == [2, 3, 30, 31]
    assert found_in_index("flag:truncated rounds<9") == [3, 7]
    assert found_in_index("flag:none rounds<9") == [1, 5]
    assert found_in_index('rounds<4 shape:"tools as text"') == [1]
    assert found_in_index("rounds<4 shape:none") == [0, 3]
    assert found_in_index("") == list(range(len(ROWS)))


def test_the_columns_of_all_fields_exist() -> None:
    for name, field in FIELDS.items():
        if field.kind != "lookup":
            value = {"number": "1", "duration": "1s", "since": "1h", "until": "1h"}.get(field.kind, "x")
            assert isinstance(found_in_index(f"{name}:{value}"), list)
    assert "ended_at" in EpisodeRow.__struct_fields__

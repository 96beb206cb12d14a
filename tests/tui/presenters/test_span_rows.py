from __future__ import annotations

import random
import re
import tracemalloc

import msgspec
import pytest

from agentgym_tui.presenters.cells import FOLD_WIDTH
from agentgym_tui.presenters.episode_facts import SpanRows, format_elapsed, spans_text, spans_with, trace_legend
from agentgym_tui.safe_text import has_unsafe_chars
from runner.types import Span
from tests.support.console.line_views import line_text
from tests.support.console.samples import HOSTILE, span

MS = 1_000_000


def names(rows: SpanRows) -> list[str]:
    return [rows.name(index).text for index in range(len(rows))]


def test_the_tree_is_derived_from_spans_in_any_order() -> None:
    spans = [
        span(1, end=10 * MS, name="episode"),
        span(2, parent=1, start=0, end=4 * MS, name="one"),
        span(3, parent=2, start=MS, end=2 * MS, name="act"),
        span(4, parent=1, start=5 * MS, end=9 * MS, name="two"),
        span(5, parent=99, start=6 * MS, end=7 * MS, name="lost"),
    ]
    for seed in range(5):
        random.Random(seed).shuffle(spans)
        assert names(SpanRows(spans)) == ["episode", "  one", "    act", "  two", "lost"]


def test_every_span_appears_once_despite_repeated_ids_and_cyclic_parents() -> None:
    spans = [span(1, parent=1), span(2, parent=3), span(3, parent=2), span(4), span(4), span(5, parent=4)]
    assert (len(SpanRows([])), SpanRows([]).axis(40)) == (0, "")
    rows = SpanRows(spans)
    assert len(rows) == len(spans)
    assert len({rows.key(index) for index in range(len(rows))}) == len(spans)


def test_repeated_ids_with_many_children_take_little_memory() -> None:
    spans = [span(1, parent=1) for _ in range(2_000)]
    tracemalloc.start()
    try:
        rows = SpanRows(spans)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(rows) == len(spans)
    assert peak < 5 << 20
    rows = SpanRows([span(number, parent=number - 1, start=number) for number in range(5_000)])
    assert names(rows)[-1] == " " * 24 + "step", "the indentation of deep trees is limited"


def test_one_step_has_its_own_axis_and_the_legend_has_the_colors_of_its_bars() -> None:
    spans = [span(1, end=20 * MS, name="episode")]
    for step, at in enumerate((0, 10 * MS)):
        top = span(10 * step + 2, parent=1, start=at, end=at + 8 * MS, name="timestep")
        spans.append(msgspec.structs.replace(top, attributes={"index": step}))
        for number, name in enumerate(("queue", "prefill", "decode")):
            start = at + 2 * MS * number
            part = span(10 * step + 3 + number, parent=top.id, start=start, end=start + 2 * MS, name=name)
            spans.append(msgspec.structs.replace(part, category="inference"))
    rows = SpanRows(spans, step=1)
    assert names(rows) == ["timestep", "  queue", "  prefill", "  decode"]
    assert rows.axis(16) == "0         8.0 ms" and rows.bar(1, 16).text == "█" * 4
    assert [rows.position(index) for index in range(4)] == [5, 6, 7, 8]
    assert not len(SpanRows(spans, step=7)) and SpanRows(spans, step=7).axis(40) == ""
    assert spans_text(spans, raw=True, step=1).count("queue") == 1
    legend = trace_legend(60)  # columns beside the steps
    tones = {name.text.strip(): mark.tone for mark, name in zip(legend[::2], legend[1::2], strict=True)}
    assert all(tones[rows.name(index).text.strip()] == rows.bar(index, 40).tone for index in (1, 2, 3))
    assert "warn" not in tones.values()  # in the default theme, it has the color of the environment
    assert len({*tones.values()}) == len(tones) == 6 and "…" not in line_text(legend)


def test_bars_share_one_axis() -> None:
    spans = [
        span(1, end=8 * MS),
        span(2, parent=1, start=2 * MS, end=4 * MS),
        span(3, parent=1, start=8 * MS, end=8 * MS),
    ]
    rows = SpanRows(spans)
    assert [rows.bar(index, 16).text for index in range(3)] == ["█" * 16, "    ████", " " * 15 + "▏"]
    assert rows.bar(1, 10).text == "  ██▌"
    assert rows.axis(16) == "0         8.0 ms"
    assert rows.axis(40) == "0                4.0 ms           8.0 ms"
    assert [len(rows.axis(width)) for width in (1, 6, 7, 30, 99)] == [0, 0, 7, 30, 99]


def test_a_failed_span_shows_a_mark_and_its_error() -> None:
    failed = msgspec.structs.replace(span(1, name="env.step"), attributes={"error": "Time\x1bout"})
    rows = SpanRows([failed])
    assert rows.name(0) == ("⚠ ✗ env.step Time␛out", "bad")
    assert rows.bar(0, 4).tone == "bad"
    assert rows.name(0).raw == "✗ env.step Time\x1bout"
    assert SpanRows([span(1)]).name(0).raw == ""


def test_the_attributes_of_an_opened_span_are_rows_below_it() -> None:
    texts = {"task_id": "Maze/3", "error": "first\n" + "x" * (FOLD_WIDTH + 1), "done": True, "note": HOSTILE}
    spans = [span(1, name="episode"), msgspec.structs.replace(span(2, parent=1, name="env.step"), attributes=texts)]
    assert len(SpanRows(spans)) == 2 and spans_with(spans, re.compile("Maze")) == {1}
    rows = SpanRows(spans, spans_with(spans, re.compile("Maze")))
    assert [rows.is_attribute(index) for index in range(4)] == [False, False, True, True]
    assert [rows.name(index).text for index in (2, 3, 6)] == [
        "    · task_id: Maze/3",
        "    · error: first",
        "    · done: True",
    ]
    assert "x" * FOLD_WIDTH in rows.name(4).text and rows.name(5).text == "    · x"
    assert {rows.position(index) for index in range(1, len(rows))} == {1} and rows.position(len(rows)) is None
    assert len({rows.key(index) for index in range(len(rows))}) == len(rows)
    assert not any(has_unsafe_chars(cell.text) for index in range(len(rows)) for cell in rows.line(index, 80))


@pytest.mark.parametrize("extreme", [2**63, -(2**63), 10**400, -(10**400), 0])
def test_hostile_names_and_times_become_safe_lines(extreme: int) -> None:
    hostile_span = Span(
        id=extreme, parent=extreme, name=HOSTILE, category=HOSTILE, track="", start_ns=extreme, end_ns=-extreme
    )
    rows = SpanRows([hostile_span, span(1), hostile_span])
    for index in range(3):
        texts = [*(cell.text for cell in rows.line(index, 80)), rows.bar(index, 20).text, rows.axis(60)]
        assert not any(has_unsafe_chars(text) for text in texts)
        assert 1 <= len(rows.bar(index, 20).text) <= 20


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (-5, "0 µs"),
        (900, "1 µs"),
        (800_000, "800 µs"),
        (2_900_000, "2.9 ms"),
        (45 * MS, "45 ms"),
        (90_000 * MS, "1:30"),
    ],
)
def test_elapsed_times_are_formatted(ns: int, text: str) -> None:
    assert format_elapsed(ns) == text

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.presenters.cells import line_width
from agentgym_tui.presenters.result_rows import (
    CLUSTERS,
    attempt_at,
    attempt_cells,
    cluster_heading,
    cluster_lines,
    comparable_selections,
    comparison_lines,
    episodes_filter,
    estimate_lines,
    histogram_lines,
    model_cell,
    result_detail,
    result_key,
    result_listing,
)
from runner.results.clusters import Cluster
from runner.results.comparison import compare
from runner.results.summary import Histogram, summarize_results
from runner.results.task_matrix import Attempt, Estimate, TaskGroup, task_matrices
from runner.types import Outcome
from runner.util.display_text import is_unsafe
from tests.support.console.line_views import line_text
from tests.support.results import ResultTable


def group(n: int) -> TaskGroup:
    attempt = Attempt(episode_id="e", batch_id="b", outcome=Outcome.FAILURE, success=False, reward=0.0, rated=True)
    return TaskGroup(task_index=0, attempts=(attempt,) * n)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(9, 100))
def test_each_drawn_attempt_is_found_under_the_pointer_and_the_selected_one_is_drawn(
    n: int, selected: int, width: int
) -> None:
    line = attempt_cells(group(n).attempts, selected, width, selected=True)
    text = "".join(cell.text for cell in line)
    chosen = text.index("[") + 1
    assert line_width(line) >= width
    assert (text[chosen], text[chosen + 1]) == ("-", "]")
    assert attempt_at(chosen, n, selected, width) == min(selected, n - 1)
    found = {attempt_at(x, n, selected, width) for x, sign in enumerate(text) if sign == "-"}
    assert None not in found and len(found) == text.count("-")


def test_attempts_that_do_not_fit_are_counted() -> None:
    attempts = group(16).attempts
    assert line_text(attempt_cells(attempts, 0, 33, selected=False)).count("-") == 16
    assert line_text(attempt_cells(attempts, 0, 20, selected=False)) == " - - - - -  11 more "


def test_estimates_name_the_tasks_that_they_cover() -> None:
    lines = estimate_lines([Estimate(1, 200, 0.5, 0.5), Estimate(2, 20, 0.75, 0.25)], 80)
    assert ["".join(cell.text for cell in line).split() for line in lines] == [
        ["k", "1", "2"],
        ["tasks", "200", "20"],
        ["pass@k", "50%", "75%"],
        ["pass^k", "50%", "25%"],
    ]


def test_rows_of_other_shapes_are_named_selected_and_compared() -> None:
    usual, as_text = summarize_results(ResultTable([{"model": "m"}, {"model": "m", "shape": "tools as text"}]))
    assert ["tools as text" in line_text(result_detail(each, "", 120)[0]) for each in (usual, as_text)] == [False, True]
    assert result_key(usual) != result_key(as_text)
    cells = [result_listing(lambda row: False, str).line(each) for each in (usual, as_text)]
    assert [line[-1].text for line in cells] == ["", "tools as text"]  # the last column, which such rows alone have
    assert episodes_filter([as_text]).endswith('shape:"tools as text" data:upstream')
    selected, baseline = comparable_selections(as_text, usual)
    assert (selected.shape, baseline.shape, baseline.excluded_batch) == ("tools as text", "", None)
    table = ResultTable([{"model": "m"}, {"model": "m", "shape": "tools as text", "task_index": 0}])
    comparison = compare(task_matrices(table, selected), task_matrices(table, baseline))
    lines = [line_text(line) for line in comparison_lines(comparison, (as_text, usual), (1, 0), 120)]
    assert lines[0].endswith("1 only in oracle baseline")
    assert lines[1].endswith("requests differ: selection tools as text, the other as usual")


def test_a_histogram_leaves_empty_bins_empty_and_a_few_rewards_are_listed() -> None:
    counts = [4, 0, 1, *[0] * 16, 8]
    lines = ["".join(cell.text for cell in line) for line in histogram_lines(Histogram(0.0, 1.0, counts))]
    assert lines[1].startswith("██  ▂▂  ") and lines[0].startswith("  ")
    assert lines[0].endswith("rewards of 13 scored episodes") and "62% of them from 0.95 to 1" in lines[1]
    assert lines[2].split() == ["0", "1"]
    assert [cell.text for line in histogram_lines(None) for cell in line] == ["no scored episodes"]
    listed = histogram_lines(Histogram(0.0, 1.0, [1, 0, 2], [1.0, 0.25, 0.75]))
    assert [line_text(line) for line in listed] == ["rewards of 3 scored episodes, the newest last: 1 · 0.25 · 0.75"]


def test_what_a_cluster_quotes_is_safe_in_every_line() -> None:
    hostile = "\x1b[2J\u202e[bold]"
    cluster = Cluster(
        env=hostile,
        failure=hostile,
        cause=hostile,
        action=hostile,
        observation=hostile,
        n=1200,
        representative=hostile,
        step=3,
        agents={hostile: 2},
        flags={hostile: 1},
        episodes=[],
    )
    clusters = CLUSTERS.rows()
    clusters.set_rows([cluster])
    shown = CLUSTERS.line(cluster)
    lines = [shown, *cluster_lines(cluster, 100), *cluster_heading(clusters, hostile, "x", 100)]
    assert len(shown) == len(CLUSTERS.columns)
    assert [cell.text for line in lines for cell in line if is_unsafe(cell.text)] == []
    assert "1,200" in line_text(lines[0])


def test_a_secret_in_the_name_of_a_model_is_masked() -> None:
    assert model_cell("http://user:hunter2@host/v1").text == "http://***@host/v1"

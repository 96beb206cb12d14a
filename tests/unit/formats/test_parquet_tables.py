"""Tables that pyarrow would take too much for, or die of, are refused; each is read in a process of its own."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.errors import StoreError
from runner.formats.format import recognise
from runner.formats.parquet import read_rows
from runner.formats.reading import LIMITS, Limits
from runner.store import EpisodeIndex, EpisodeStore
from tests.unit.formats.conftest import imported, read_all

pa: Any = pytest.importorskip("pyarrow", reason="run `.venv/bin/pip install pyarrow`")
parquet: Any = pytest.importorskip("pyarrow.parquet")

MAX_GROWTH_KB = 100_000


def table(path: Path, *texts: str, **options: Any) -> Path:  # noqa: ANN401
    rows = [{"episode_id": f"e{n}", "step": 0, "reply": "r", "observation": text} for n, text in enumerate(texts)]
    parquet.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def refusal(path: Path) -> str:
    """Return why a table is refused, which takes this process little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreError) as caught:
        read_all(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KB
    return str(caught.value)


def lying(path: Path, *size: int) -> None:
    """Let the first page say that it has another size, which is the field after its type, in Thrift's encoding."""
    data, column = path.read_bytes(), parquet.read_metadata(path).row_group(0).column(0)
    at = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset) + 3
    end = at
    while data[end] & 128:
        end += 1
    path.write_bytes(data[:at] + bytes(size) + data[end + 1 :])


def test_a_page_that_says_it_has_2_gb_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", "a", "b")
    lying(path, 254, 255, 255, 255, 15)
    assert "memory" in refusal(path)


@pytest.mark.parametrize("size", [(1,), (255, 255, 255, 255, 15), (0,)])
def test_a_page_of_a_wrong_size_is_refused(tmp_path: Path, size: tuple[int, ...]) -> None:
    path = table(tmp_path / "t.parquet", "a", "b")
    lying(path, *size)
    assert "t.parquet" in refusal(path)


@pytest.mark.long
def test_a_list_with_too_many_values_is_refused(tmp_path: Path) -> None:
    n = 150_000_000
    values = pa.ListArray.from_arrays([0, n], pa.repeat(pa.scalar(None, pa.int8()), n))
    columns = {"episode_id": ["a"], "step": [0], "reply": ["r"], "observation": ["o"], "loss_mask": values}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert "memory" in refusal(tmp_path / "t.parquet")


def test_a_table_with_other_columns_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": [1]}), path)
    assert refusal(path).endswith(": it has other columns than an export of episodes")
    path.write_bytes(table(path, "a", "b").read_bytes()[:-20] + b"\xff" * 12 + b"PAR1PAR1")
    assert "damaged" in refusal(path)


def test_a_refused_table_is_in_the_report_of_an_import(
    tmp_path: Path, store: EpisodeStore, index: EpisodeIndex
) -> None:
    lying(table(tmp_path / "a.parquet", "a"), 254, 255, 255, 255, 15)
    table(tmp_path / "b.parquet", "a")
    report = imported(store, index, tmp_path)
    assert (report.n_imported, report.n_malformed) == (1, 1)
    assert report.malformed[0].path.endswith("a.parquet")


def test_a_text_that_is_stored_once_may_be_that_of_many_rows(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", *["x" * (5 << 20)] * 50)
    assert path.stat().st_size < 10 << 20
    found, malformed = read_all(path)
    assert (len(found), malformed) == (50, [])


def test_an_episode_with_too_large_rows_costs_only_itself(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", "a", "x" * 2_000, "b", row_group_size=2)
    found, malformed = read_all(path, Limits(item_bytes=1_000))
    assert [(each.place.number, each.reason) for each in malformed] == [(2, "its rows are too large")]
    assert [each.place.start for each in found] == [0, 2]


def test_an_episode_is_read_again_from_any_row_group(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", *map(str, range(7)), row_group_size=2)
    found, _ = read_all(path)
    for each in found:
        data = read_rows(each.place, LIMITS)
        assert f'"observation":"{each.place.number - 1}"'.encode() in data
    table(path, "only one")
    with pytest.raises(StoreError, match="shorter than before"):
        read_rows(found[-1].place, LIMITS)


@pytest.fixture
def items(tmp_path: Path) -> Iterator[Any]:
    """The items of a table whose process waits until more of them are taken."""
    path = table(tmp_path / "t.parquet", *["x" * (1 << 20)] * 50, use_dictionary=False)
    form = recognise(path)
    assert form is not None
    items: Any = form.items(path, LIMITS)
    assert next(items).place.number == 1
    yield items
    items.close()
    assert children() == []


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGALRM, "takes more than 60 s")]
)
def test_a_process_that_dies_or_is_late_is_a_refused_table(items: Any, number: int, reason: str) -> None:  # noqa: ANN401
    (pid,) = children()
    os.kill(pid, number)
    with pytest.raises(StoreError, match=reason):
        list(items)


def test_a_reader_that_stops_leaves_no_process(items: Any) -> None:  # noqa: ANN401
    assert len(children()) == 1
    items.close()
    assert children() == []


def children() -> list[int]:
    return [each.pid for each in psutil.Process().children()]

"""The process that reads a table, so that a file that makes pyarrow take too much, crash or hang costs only itself.

``python -m runner.formats.parquet_rows MAX_BYTES START N_ROWS`` prints a line for each episode of the table at its
standard input: the number of its rows, and their JSON array or ``!`` and why they cannot be read. ``N_ROWS`` rows from
``START`` on are read, all if it is 0. A line without a number has the reason why the whole table cannot be read.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from runner.util.json_accessors import as_text
from runner.util.safe_values import encode

NEEDS_PYARROW: Final = "Parquet needs the package pyarrow; install it with: pip install 'agentgym-console[parquet]'"
MEMORY_BYTES: Final = 1 << 30
"""Address space of the process beyond that of its libraries."""
MAX_WAIT_S: Final = 60
"""Largest number of seconds until the next episode."""
_REQUIRED: Final = frozenset({"episode_id", "step", "reply", "observation"})
_BATCH_ROWS: Final = 200
_UNREADABLE: Final = b"!a value of its rows cannot be read, such as a time after the year 9999"


class _OtherColumns(Exception):
    pass


def main() -> None:
    max_bytes, start, n_rows = map(int, sys.argv[1:])
    signal.alarm(MAX_WAIT_S)
    try:
        _limit_memory()
        for n, line in _episodes(max_bytes, start, n_rows):
            signal.alarm(0)  # whoever reads may take longer
            sys.stdout.buffer.write(b"%d %b\n" % (n, line))
            sys.stdout.buffer.flush()
            signal.alarm(MAX_WAIT_S)
    except _OtherColumns:
        _refuse("it has other columns than an export of episodes")
    except ImportError:
        _refuse(NEEDS_PYARROW)
    except MemoryError:
        _refuse(f"it needs more than {MEMORY_BYTES >> 20} MiB of memory")
    except (OSError, ValueError, TypeError, KeyError) as exc:  # pyarrow's errors are of these kinds
        _refuse(f"it is damaged: {exc}")


def _limit_memory() -> None:
    import pyarrow.parquet  # noqa: F401 - its libraries do not count

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        n_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = n_pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _refuse(reason: str) -> None:
    sys.stdout.write(f"!{reason}".replace("\n", " ") + "\n")


def _episodes(max_bytes: int, start: int, n_rows: int) -> Iterator[tuple[int, bytes]]:
    rows = islice(_rows(max_bytes, start), n_rows or None)
    for _, group in groupby(rows, key=itemgetter(0)):
        kept, n_bytes, n, problem = list[bytes](), 0, 0, b""
        for _, row in group:
            n, n_bytes = n + 1, n_bytes + len(row) + 1
            if n_bytes > max_bytes:
                kept, problem = [], problem or b"!its rows are too large"
            elif row == _UNREADABLE:
                problem = row
            else:
                kept.append(row)
        yield n, problem or b"[" + b",".join(kept) + b"]"


def _rows(max_bytes: int, start: int) -> Iterator[tuple[str, bytes]]:
    """Yield episode id and JSON of each row from a number on."""
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(sys.stdin.buffer)
    if not set(file.schema_arrow.names) >= _REQUIRED:
        raise _OtherColumns
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        if start >= group.num_rows:
            start -= group.num_rows
            continue
        # a text that is stored once may be the value of every row
        largest = max(group.column(each).total_uncompressed_size for each in range(group.num_columns))
        n_rows = max(1, min(_BATCH_ROWS, max_bytes // max(largest, 1)))
        for batch in file.iter_batches(n_rows, row_groups=[number], use_threads=False):
            n_skipped, start = min(start, batch.num_rows), max(start - batch.num_rows, 0)
            yield from _encoded(batch.slice(n_skipped))


def _encoded(batch: Any) -> Iterator[tuple[str, bytes]]:  # noqa: ANN401 - pyarrow's batch
    """A row is ``_UNREADABLE`` if it has a value that Python or JSON cannot have."""
    try:
        yield from [(as_text(row.get("episode_id")), encode(row)) for row in batch.to_pylist()]
    except (ValueError, OverflowError, TypeError):
        if batch.num_rows == 1:
            yield as_text(batch.column("episode_id")[0].as_py()), _UNREADABLE
            return
        for number in range(batch.num_rows):
            yield from _encoded(batch.slice(number, 1))


if __name__ == "__main__":
    main()

"""A Parquet table: any file, or rows of any types; needs pyarrow, without which every table is refused.

The input is a table, or a row of JSON per line.
"""

from __future__ import annotations

from importlib.util import find_spec

from runner.formats.parquet import FORMAT
from runner.util.json_accessors import as_dict, decode_json
from tests.fuzz.foreign_items import check_path
from tests.fuzz.oracles import scratch_folder

TOKENS = (
    *(b"PAR1", b'{"episode_id":"a","step":0,"reply":"', b'"observation":"', b'"prompt":"', b'"reward":0.5'),
    *(
        b'"tool_calls":"[{\\"function\\":',
        b'"started_at":"2026-01-02T03:04:05Z"',
        b'"tokens_prompt":7',
        b'"valid":false',
    ),
)
PATH = scratch_folder("foreign_table") / "episodes.parquet"
HAS_PYARROW = find_spec("pyarrow") is not None


def check(data: bytes) -> None:
    if data.startswith(b"PAR1") or not HAS_PYARROW:
        PATH.write_bytes(data)
    elif not _write([as_dict(decode_json(line)) for line in data.split(b"\n")]):
        return
    check_path(PATH, FORMAT)


def _write(rows: list[dict[str, object]]) -> bool:
    """Write rows with the types that pyarrow finds for them; return whether they have any."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        parquet.write_table(pa.Table.from_pylist(rows), PATH, row_group_size=3)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True

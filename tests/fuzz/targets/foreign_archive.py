"""A log of Inspect: a zip file, and what its header and samples become.

The input is a zip file, or lines: the header, then a sample each, which are packed in the way that the first byte of
the input chooses.
"""

from __future__ import annotations

import zipfile

from runner.formats.inspect_log import FORMAT
from tests.fuzz.foreign_items import check_path
from tests.fuzz.oracles import scratch_folder

TOKENS = (
    *(b"PK\x03\x04", b"PK\x05\x06", b"header.json", b"samples/1.json", b'"messages":[{"role":"assistant","content":"'),
    *(b'"content":"attachment://1f"', b'"attachments":{"1f":"', b'"scores":{"m":{"value":"C"}}', b'"id":"s","epoch":1'),
    *(b'{"event":"span_begin","id":"s","type":"branch"}', b'{"event":"model","span_id":"s","input_refs":[[0,1]]'),
    *(b'"parent_id":"s"', b'"events_data":{"messages":[', b'"output":{"choices":[{"message":{', b'"limit":{"type":"'),
)
PATH = scratch_folder("foreign_archive") / "log.eval"


def check(data: bytes) -> None:
    if data.startswith(b"PK"):
        PATH.write_bytes(data)
    else:
        _write(data[:1], data[1:].split(b"\n"))
    check_path(PATH, FORMAT)


def _write(method: bytes, lines: list[bytes]) -> None:
    packing = zipfile.ZIP_DEFLATED if method < b"m" else zipfile.ZIP_STORED
    with zipfile.ZipFile(PATH, "w", packing) as log:
        for number, line in enumerate(lines):
            log.writestr(f"samples/{number}.json" if number else "header.json", line)

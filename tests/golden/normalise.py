"""Replacement of what differs between two runs: ids, times, durations, places and versions, nothing else.

- An id (ULID), a digest and the id of a span or flow becomes ``<id-N>``, numbered by its first appearance in the file.
- A time becomes ``<time>``; a number under a key of ``MEASURED``, or with a unit of time at its end, ``<n>``.
- The folder of the run becomes ``<folder>``, the host's name ``<host>``, versions of packages ``<version>``.

The order of keys and everything else stays, so that the recordings are about bytes.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

_ID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}|[0-9a-f]{64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_PORT: Final = re.compile(r"127\.0\.0\.1:\d+")
_SECONDS: Final = re.compile(r"\d+\.\d\d s\b")
MEASURED: Final = frozenset(
    {
        *("seq", "start", "end", "ts", "dur", "time", "created", "timestamp", "start_time", "end_time", "time_ms"),
        *("generation_ms", "setup", "size", "mtime_ns", "id_ns", "span_id", "flow_id", "parent_id", "from", "to"),
        *("pid", "cpu", "ram", "used", "own", "queue", "env", "prefill", "decode", "rss_bytes", "bytes"),
        *("trace_last_response_flow_id", "free_bytes", "gpu", "n_bytes", "n_freed", "reset_at"),
    }
)
_UNITS: Final = re.compile(r".*_(?:s|sec|ns|ms|j|mib)")


class Normaliser:
    """Normalises the texts of one recording; ids are numbered over all of them."""

    def __init__(self, folder: Path) -> None:
        self._ids: dict[str, str] = {}
        self._folder, self._host = str(folder), socket.gethostname()

    def text(self, text: str) -> str:
        """Return a text without ids, times, places and ports."""
        if text == self._host:
            return "<host>"
        text = text.replace(self._folder, "<folder>")
        text = _ID.sub(lambda match: self._ids.setdefault(match[0], f"<id-{len(self._ids) + 1}>"), text)
        return _SECONDS.sub("<n> s", _PORT.sub("127.0.0.1:<port>", _TIME.sub("<time>", text)))

    def line(self, data: bytes | str) -> str:
        """Return a line; one of JSON with its values normalised by their keys, too."""
        try:
            value = json.loads(data)
        except ValueError:
            return self.text(data.decode("utf-8", "replace") if isinstance(data, bytes) else data)
        return json.dumps(self._value(value, ""), ensure_ascii=False, separators=(",", ":"))

    def lines(self, data: Iterable[bytes | str]) -> list[str]:
        """Return lines, normalised one after another."""
        return [self.line(each) for each in data]

    def _value(self, value: Any, key: str) -> Any:  # noqa: ANN401
        if isinstance(value, dict):
            if key == "versions":
                return dict.fromkeys(value, "<version>")
            return {self.text(name): self._value(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self._value(each, key) for each in value]
        if isinstance(value, str):
            return "<version>" if key == "version" else self.text(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return "<n>" if is_number and (key in MEASURED or _UNITS.fullmatch(key)) else value

"""Replacement of what differs between two runs, in the text as it was written: nothing is decoded and encoded again.

- An id (ULID), a digest or a hash becomes ``<id-N>``, numbered by its first appearance in the recording.
- A time keeps its form, with zeros for its digits.
- A number under a key of ``MEASURED``, or whose key ends with a unit, becomes ``<int>`` or ``<float>``.
- A chunk of a file, in base64, becomes ``<base64>``.
- Whether a heartbeat found the node busy becomes ``<idle or running>``.
- The folder of the run becomes ``<folder>``, the host's name ``<host>``, a port ``<port>``, a version ``<version>``.

Everything else stays, so that the order of keys, spaces, the form of numbers, escapes and the end of each text count.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from runner import __version__

END: Final = "<end>"
"""Ends each text, on a line of its own where the text ends with a line break."""

_MEASURED: Final = "|".join(
    (
        *("seq", "start", "end", "ts", "dur", "time", "created", "timestamp", "start_time", "end_time", "time_ms"),
        *("generation_ms", "setup", "size", "mtime_ns", "id_ns", "span_id", "flow_id", "parent_id", "from", "to"),
        *("pid", "cpu", "ram", "used", "own", "queue", "env", "prefill", "decode", "rss_bytes", "bytes"),
        *("trace_last_response_flow_id", "free_bytes", "gpu", "n_bytes", "n_freed", "reset_at", "total"),
        *("sequence", "model"),
        r"[a-z_]*_(?:s|sec|ns|ms|j|mib)",
    )
)
_ID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}|[0-9a-f]{64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_NUMBER: Final = re.compile(rf'(\\?"(?:{_MEASURED})\\?":\s*)(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')
_PORT: Final = re.compile(r"(127\.0\.0\.1|localhost):\d+")
_SECONDS: Final = re.compile(r"\d+\.\d\d s\b")
_VERSIONS: Final = re.compile(r'(\\?"versions\\?":\s*\{)([^}]*)(\})')
_CHUNK: Final = re.compile(r'("data":")[A-Za-z0-9+/]{400,}={0,2}(")')
_BUSY: Final = re.compile(r'("kind":"heartbeat"[^}]*?"status":")(?:idle|running)')
_VERSION: Final = re.compile(r'(:\s*\\?")[^"\\]*')


class Normaliser:
    """Normalises the texts of one recording; ids are numbered over all of them."""

    def __init__(self, folder: Path, *, measured: bool = True) -> None:
        """Unless numbers and times are ``measured``, they stay as they are."""
        self._ids: dict[str, str] = {}
        self._folder, self._measured = str(folder), measured
        self._host = f'"{socket.gethostname()}"'

    def text(self, content: bytes | str) -> str:
        """Return a text without ids, times, measured numbers, places, ports and versions."""
        text = content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else content
        text = text.replace("\r", "<CR>").replace(self._folder, "<folder>").replace(self._host, '"<host>"')
        text = _ID.sub(lambda match: self._ids.setdefault(match[0], f"<id-{len(self._ids) + 1}>"), text)
        text = _VERSIONS.sub(lambda match: match[1] + _VERSION.sub(r"\1<version>", match[2]) + match[3], text)
        text = _CHUNK.sub(r"\1<base64>\2", text)
        text = _PORT.sub(r"\1:<port>", text.replace(f'"{__version__}"', '"<version>"'))
        if not self._measured:
            return text
        text = _BUSY.sub(r"\1<idle or running>", text)
        text = _TIME.sub(lambda match: _without_digits(match[0]), text)
        return _SECONDS.sub("<float> s", _NUMBER.sub(lambda match: match[1] + _kind(match[2]), text))

    def lines(self, contents: Iterable[bytes | str]) -> list[str]:
        """Return the lines of texts, normalised one after another."""
        return [line for content in contents for line in f"{self.text(content)}{END}".split("\n")]


def _without_digits(time: str) -> str:
    """Return the form of a time, with zeros for its digits but those of its offset."""
    return re.sub(r"\d", "0", time)


def _kind(number: str) -> str:
    return "<int>" if number.removeprefix("-").isdigit() else "<float>"

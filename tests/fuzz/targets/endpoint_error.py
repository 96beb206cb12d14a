"""Error responses of a model server: status, ``Retry-After`` and body; and its list of models.

The input is a line ``STATUS RETRY-AFTER``, an empty line, and the body.
"""

from __future__ import annotations

from datetime import UTC, datetime

from runner.inference.errors import response_failure
from runner.inference.http import retry_after_s
from runner.util.display_text import masker
from tests.fuzz.oracles import SECRET, check_displayable, check_masked, split_head

TOKENS = (
    b'{"error":{"message":"model not found"}}',
    b'{"detail":"',
    b"429 ",
    b"Wed, 04 Mar 2026 05:06:09 GMT",
    b"-1",
    SECRET.encode(),
    b"http://u:p@h/",
)
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
MASK = masker({}, [SECRET])


def check(data: bytes) -> None:
    (line, *_), body = split_head(data)
    status, _, header = line.partition(" ")
    wait_s = retry_after_s(header, NOW)
    assert wait_s is None or 0 <= wait_s < float("inf")
    failure = response_failure(int(status) if status in STATUSES else 500, body, MASK, wait_s)
    check_displayable(str(failure))
    check_masked(str(failure))
    assert len(str(failure)) < 400 and failure.otel_error_type


STATUSES = frozenset(map(str, (204, 302, 400, 401, 404, 408, 422, 429, 500, 501, 503, 999)))

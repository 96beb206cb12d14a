"""The clock of the runner: monotonic seconds, UTC time stamps, and ids that sort by time; tests replace the clock."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RANDOM_BITS = 80
_DIGIT_BITS, _N_DIGITS = 5, 26
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID = re.compile(f"[0-7][{_DIGITS}]{{{_N_DIGITS - 1}}}")


def is_ulid(text: str) -> bool:
    """Only ULIDs in upper case are used in paths."""
    return _ULID.fullmatch(text) is not None


def new_ulid(milliseconds: int | None = None) -> str:
    """Return a new ULID: 26 characters, of which 10 are the milliseconds since 1970, by default now, and 16 are random.

    Without ``milliseconds``, each ULID of this process is greater than the last one of the same millisecond. The
    package ``python-ulid`` reads package metadata at its import, which takes as long as 1,000 of these calls.
    """
    return _encode_ulid(_new_number() if milliseconds is None else _random_number(milliseconds))


def derive_ulid(ulid: str, digest: bytes) -> str:
    """Return the ULID with the time of another one, and a digest of 10 bytes in place of the random part."""
    return digest_ulid(ulid_milliseconds(ulid), digest)


def digest_ulid(milliseconds: int, digest: bytes) -> str:
    """Return the ULID of a time since 1970, with a digest of 10 bytes in place of the random part."""
    return _encode_ulid(milliseconds << _RANDOM_BITS | int.from_bytes(digest, "big"))


def ulid_milliseconds(ulid: str) -> int:
    """Return the time of a ULID in milliseconds since 1970; ``is_ulid`` must hold."""
    milliseconds = 0
    for digit in ulid[: -_RANDOM_BITS // _DIGIT_BITS]:
        milliseconds = milliseconds << _DIGIT_BITS | _DIGITS.index(digit)
    return milliseconds


class _IncreasingNumbers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        with self._lock:
            number = _random_number(time.time_ns() // 1_000_000)
            is_same_time = number >> _RANDOM_BITS == self._last >> _RANDOM_BITS
            self._last = self._last + 1 if is_same_time else number
            return self._last


_new_number = _IncreasingNumbers().next


def _random_number(milliseconds: int) -> int:
    return milliseconds << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")


def _encode_ulid(number: int) -> str:
    shifts = range((_N_DIGITS - 1) * _DIGIT_BITS, -1, -_DIGIT_BITS)
    return "".join(_DIGITS[number >> shift & (1 << _DIGIT_BITS) - 1] for shift in shifts)


class Clock(msgspec.Struct, frozen=True):
    """Source of durations (``monotonic``, in seconds) and of time stamps (``now``, in UTC)."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = partial(datetime.now, UTC)


class Stopwatch:
    """Measures the seconds since its creation, except those during which it is paused."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._started_at = now()
        self._paused_at: float | None = None

    @property
    def is_paused(self) -> bool:
        return self._paused_at is not None

    @property
    def seconds(self) -> float:
        return (self._now() if self._paused_at is None else self._paused_at) - self._started_at

    def set_paused(self, paused: bool) -> None:
        if paused and self._paused_at is None:
            self._paused_at = self._now()
        elif not paused and self._paused_at is not None:
            self._started_at += self._now() - self._paused_at
            self._paused_at = None

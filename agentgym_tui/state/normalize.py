"""The door for what comes from outside: ``bounded`` cuts texts and limits numbers, once after decoding.

Messages may carry texts of any length and integers of thousands of digits; the state keeps only what can be shown,
added and compared.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import is_
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from runner.events.live import TokenText
from runner.types.machine import MAX_GPUS, MAX_INSTANCES, MAX_PROCESSES
from runner.util.clock import EPOCH, is_ulid, ulid_milliseconds

MAX_NAME_CHARS: Final = 200  # kept of a text that ``_CHARS`` does not name, such as an environment, model or node
MAX_ID_CHARS: Final = 200  # a longer text is not a valid id
MAX_CAUSE_CHARS: Final = 4_000  # kept of the cause of a failure
MAX_TEXT_CHARS: Final = 64 * 1024  # kept of an answer, an action, or an episode's error message or traceback
MAX_COUNT: Final = 10**9
MAX_VALUE: Final = 1e12
MAX_BYTES: Final = 1 << 60
MAX_ENTRIES: Final = 400  # kept of a list that ``_ENTRIES`` does not name
_CAUSES: Final = (
    *("cause", "hint", "note", "failure", "warnings", "storage", "interruption", "gpu_cause", "lost", "egress"),
    *("data_dir", "queue"),
)
_CHARS: Final = (
    dict.fromkeys(_CAUSES, MAX_CAUSE_CHARS)
    | dict.fromkeys(("text", "arguments", "error", "error_message", "error_traceback"), MAX_TEXT_CHARS)
    | dict.fromkeys(("episode_id", "batch_id"), MAX_ID_CHARS + 1)  # so that a longer one stays invalid
)
_ENTRIES: Final = {
    "items": MAX_COUNT,
    "steps": MAX_COUNT,
    "gpu": MAX_GPUS,
    "instances": MAX_INSTANCES,
    "processes": MAX_PROCESSES,
    "throttled": 8,
    "warnings": 20,
}
_INTEGERS: Final = (
    dict.fromkeys(("seq", "task_index", "seed"), (-(10**18), 10**18))
    | dict.fromkeys(("mem_used", "mem_total", "ram_total", "disk_free", "disk_total"), (0, MAX_BYTES))
    | {"pid": (0, 1 << 32)}
)
_FLOATS: Final = dict.fromkeys(("reward", "mean_reward", "temperature"), (-MAX_VALUE, MAX_VALUE)) | dict.fromkeys(
    ("cpu", "ram", "util"), (0.0, 100.0)
)
T = TypeVar("T")


def bounded(item: T) -> T:
    """Return a struct that was just decoded, with the values of its fields limited in place."""
    if isinstance(item, TokenText) and _is_usual(item):
        return item
    for name in getattr(item, "__struct_fields__", ()):
        value = getattr(item, name)
        if value is not None and (limited := _limited(value, name)) is not value:
            force_setattr(cast("msgspec.Struct", item), name, limited)
    return item


def _is_usual(item: TokenText) -> bool:
    """Whether all is within its limits in one of the tokens, of which tens of thousands may arrive in a second."""
    return (
        0 <= item.step <= MAX_COUNT
        and 0 <= item.call <= MAX_COUNT
        and 0 <= item.n <= MAX_COUNT
        and 0 <= item.seq <= MAX_COUNT
        and len(item.episode_id) <= MAX_ID_CHARS
        and len(item.text) <= MAX_NAME_CHARS
        and len(item.tool) <= MAX_NAME_CHARS
        and item.endpoint is None
        and item.failure is None
        and item.ttft_s is None
        and item.at.tzinfo is not None
    )


def _limited(value: Any, name: str) -> Any:  # noqa: ANN401 - any decoded value
    kind = type(value)
    if kind is str:
        return value if len(value) <= (limit := _CHARS.get(name, MAX_NAME_CHARS)) else value[:limit]
    if kind is int:
        low, high = _INTEGERS.get(name, (0, MAX_COUNT))
        return value if low <= value <= high else max(low, min(value, high))
    if kind is float:
        least, most = _FLOATS.get(name, (0.0, MAX_VALUE))
        return value if least <= value <= most else max(least, min(value, most))
    if kind is datetime:
        return as_aware(value)
    if kind is list or kind is tuple:
        kept = value[: _ENTRIES.get(name, MAX_ENTRIES)]
        limited = kind(_limited(each, name) for each in kept)
        return value if len(kept) == len(value) and all(map(is_, kept, limited)) else limited
    if name == "error" and kind is dict:
        return {key[:MAX_NAME_CHARS]: _limited(each, name) for key, each in list(value.items())[:MAX_ENTRIES]}
    return bounded(value)


_FIRST_YEAR, _LAST_YEAR = 2016, 2099  # plausible creation times: the first is that of the ULID specification


def as_aware(time: datetime) -> datetime:
    """A time without a zone is taken as UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def ulid_time(ulid: str) -> datetime | None:
    """Return the creation time of a ULID in any case; None if it is none, or its time is implausible."""
    if len(ulid) > MAX_ID_CHARS or not is_ulid(upper := ulid.upper()):
        return None
    try:
        time = EPOCH + timedelta(milliseconds=ulid_milliseconds(upper))
    except OverflowError:
        return None
    return time if _FIRST_YEAR <= time.year <= _LAST_YEAR else None

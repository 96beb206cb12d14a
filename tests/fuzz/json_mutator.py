"""Changes the structure of JSON inside an input: decoders in C give the fuzzer no coverage to find it by.

An input may be lines of which some hold JSON: headers, events of a stream, lines of a journal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

MutateBytes: TypeAlias = Callable[[bytes, int], bytes]
_Slot: TypeAlias = tuple[Any, Any]
"""A list or dict, and the index or key of one of its values."""

_BYTES_SHARE: Final = 0.35
_MAX_CHANGES: Final = 4
_TEXTS: Final = (
    "",
    "\x1b[2J\x1b]0;t\x07\x1b]52;c;eA==\x07",
    "\x9b1m\x85\u2028",
    "\u202e\u2066x\u200b\ufeff",
    "\ud800",
    "\udcff\udfff",
    "a" + "\u0301" * 9,
    "\ue000\U000f0000\U0010ffff",
    "👩\u200d👩🏽‍👧 漢字",
    "x\ny\tz\r\n",
    "\x00",
    "9" * 400,
    "1e999",
    "true",
    "${HOME}",
    "http://u:p4ssw0rd@h/",
    "01J0000000AAAAAAAAAAAAAAAA",
    "2026-03-04T05:06:07Z",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "[/][bold red]@click=app.quit",
    "<think>",
    "Action:",
)
_NUMBERS: Final = (0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 1e-320)
_SCALARS: Final[tuple[Any, ...]] = (None, True, False, [], {}, *_NUMBERS, *_TEXTS)


def mutate(data: bytes, max_size: int, seed: int, mutate_bytes: MutateBytes) -> bytes:
    """Return a changed input of at most ``max_size`` bytes; where there is no JSON, ``mutate_bytes`` changes it."""
    rng = random.Random(seed)
    if rng.random() >= _BYTES_SHARE:
        lines = data.split(b"\n")
        starts = [(number, at) for number, line in enumerate(lines) if (at := _start_of_json(line)) >= 0]
        for number, at in rng.sample(starts, min(len(starts), 2)):
            changed = _mutated_json(lines[number][at:], rng)
            if changed is not None:
                lines[number] = lines[number][:at] + changed
        changed_data = b"\n".join(lines)
        if changed_data != data and len(changed_data) <= max_size:
            return changed_data
    return mutate_bytes(data, max_size)


def _start_of_json(line: bytes) -> int:
    starts = [at for at in (line.find(b"{"), line.find(b"[")) if at >= 0]
    return min(starts, default=-1)


def _mutated_json(text: bytes, rng: random.Random) -> bytes | None:
    try:
        root = [json.loads(text.decode("utf-8", "surrogateescape"))]
        for _ in range(rng.randint(1, _MAX_CHANGES)):
            _change(root, rng)
        ascii_only = rng.random() < 0.5
        encoded = json.dumps(root[0], ensure_ascii=ascii_only, separators=(",", ":"))
    except (ValueError, ArithmeticError, RecursionError):  # too large or nested too deeply
        return None
    return encoded.encode("utf-8", "surrogatepass")


def _change(root: list[Any], rng: random.Random) -> None:
    slots = list(_slots(root))
    container, key = rng.choice(slots)
    other, other_key = rng.choice(slots)
    match rng.randrange(9):
        case 0 | 1:
            container[key] = rng.choice(_SCALARS)
        case 2:
            container[key] = _copy(other[other_key])
        case 3 if container is not root:
            del container[key]
        case 4 if isinstance(container, list) and container is not root:
            container.insert(key, _copy(container[key]))
        case 5 if isinstance(container, dict):
            container[rng.choice((*_TEXTS, str(other_key)))] = container.pop(key)
        case 6:
            container[key] = _nested(container[key], rng)
        case _:
            container[key] = _tweaked(container[key], rng)


def _slots(root: list[Any]) -> Iterator[_Slot]:
    pending: list[Any] = [root]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], list | dict) and container[key]:
                pending.append(container[key])


def _copy(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return json.loads(json.dumps(value))


def _nested(value: Any, rng: random.Random) -> Any:  # noqa: ANN401 - any JSON value
    for _ in range(rng.choice((1, 2, 62, 63, 64, 65, 300))):
        value = [value] if rng.random() < 0.5 else {"k": value}
    return value


def _tweaked(value: Any, rng: random.Random) -> Any:  # noqa: ANN401 - any JSON value
    match value:
        case bool():
            return not value
        case int() | float():
            return rng.choice((value + 1, value - 1, -value, value * 10, value / 3))
        case str():
            at, text = rng.randint(0, len(value)), rng.choice(_TEXTS)
            return rng.choice((value[:at] + text + value[at:], value[:at], value[at:], value + value, value.upper()))
    return rng.choice(_SCALARS)

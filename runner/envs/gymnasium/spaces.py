"""Values of Gymnasium's spaces as text, and which spaces have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_NUMBERS = 64
"""Numbers of a space that are still read as text; images have more."""

_FLAT = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")


def n_numbers(space: Any) -> int | None:  # noqa: ANN401 - Gymnasium's types are not installed where this is checked
    """How many numbers a value of the space has, None where it is more than numbers."""
    match type(space).__name__:
        case "Discrete":
            return 1
        case name if name in _FLAT:
            count = 1
            for length in space.shape:
                count *= int(length)
            return count
        case "Tuple":
            return _sum([n_numbers(part) for part in space.spaces])
        case "Dict":
            return _sum([n_numbers(part) for part in space.spaces.values()])
    return None


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def numbers(value: object) -> list[str]:
    """The numbers of a value in order, floats with three decimals, those of a mapping with their names."""
    if isinstance(value, Mapping):
        return [f"{name} {' '.join(numbers(part))}" for name, part in value.items()]
    if isinstance(value, tuple | list):
        return [text for part in value for text in numbers(part)]
    plain: Any = getattr(value, "tolist", lambda: value)()  # of an array or one of its numbers
    if isinstance(plain, list):
        return numbers(plain)
    return [f"{plain:.3f}" if isinstance(plain, float) else str(int(plain))]


def digits(value: int, bases: Sequence[int]) -> list[int]:
    """A number taken apart, as a grid's cell into its row and column; the last base counts ones."""
    found: list[int] = []
    for base in reversed(bases):
        value, digit = divmod(value, base)
        found.append(digit)
    return found[::-1]

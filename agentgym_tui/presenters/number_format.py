"""Numbers as people read them; a dash for what is not known. All take numbers of any size."""

from __future__ import annotations

import math
from typing import Final

from agentgym_tui.safe_text import Safe, own

UNKNOWN: Final = own("\N{EN DASH}")
_FAR: Final = 360_000


def duration(seconds: float | None) -> Safe:
    """Such as ``4 ms``, ``1.2 s``, ``3:21`` and ``2:03:21``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    seconds = max(seconds, 0.0)
    if seconds >= _FAR:
        return own("> 99 h")
    if seconds < 0.9995:
        return own(f"{seconds * 1000:.0f} ms")
    if seconds < 59.95:
        return own(f"{seconds:.1f} s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return own(f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}")


def reward(value: float | None) -> Safe:
    """Such as ``0.25``, ``-1`` and ``1e+09``: at most nine characters."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 1000:
        return own(f"{value:.3g}")
    return own(f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip("."))


def pace(value: float | None) -> Safe:
    """Things per second, such as ``0.4``, ``42`` and ``1.2k``."""
    if value is None or not math.isfinite(value) or value < 0:
        return UNKNOWN
    return own(f"{value:.1f}") if value < 9.95 else quantity(round(value))


def cost(value: float) -> Safe:
    """In the profile's currency, such as ``0.0123``."""
    return own(f"{value:.3g}") if math.isfinite(value) else UNKNOWN


def quantity(number: int | None) -> Safe:
    """Such as ``950``, ``12k`` and ``3.4M``."""
    if number is None:
        return UNKNOWN
    if abs(number) >= 10**12:
        return own("> 1T" if number > 0 else "< -1T")
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(number) >= size:
            short = number / size
            return own(f"{short:.0f}{letter}" if abs(short) >= 9.95 else f"{short:.1f}{letter}")
    return own(str(number))


def counted(number: int, noun: str) -> Safe:
    """Such as ``1 episode`` and ``1,200 episodes``; ``noun`` is a word of our own."""
    shown = f"{number:,}" if abs(number) < 10**9 else quantity(number)
    return own(f"{shown} {noun}{'' if number == 1 else 's'}")


def byte_size(number: int) -> Safe:
    """Such as ``950 B``, ``12 kB``, ``3.4 MB`` and ``500 MB``."""
    short = quantity(number)
    return own(f"{short} B" if short[-1].isdigit() else f"{short[:-1]} {short[-1]}B")


def percent(value: float | None) -> Safe:
    """Of a value from 0 to 100; others are cut."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return own(f"{max(0.0, min(value, 100.0)):.0f}%")


def share(part: int, whole: int) -> Safe:
    """``part`` of ``whole`` in percent."""
    return percent(100 * part / whole) if whole > 0 else UNKNOWN

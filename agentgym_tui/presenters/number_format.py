"""Format numbers of any size for people. An en dash stands for an unknown number."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

from runner.types.time_shares import percent_text
from runner.util.amounts import format_amount

UNKNOWN: Final = "\N{EN DASH}"
_MAX_SHOWN_S: Final = 360_000


def format_duration(seconds: float | None) -> str:
    """Format a duration in seconds, such as ``4 ms``, ``1.2 s``, ``3:21`` and ``2:03:21``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    seconds = max(seconds, 0.0)
    if seconds >= _MAX_SHOWN_S:
        return "> 99 h"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_time(time: datetime | None, form: str = "%m-%d %H:%M", *, ms: bool = False) -> str:
    """Format a time in the local time zone, as by ``strftime``."""
    try:
        shown = "" if time is None else time.astimezone().strftime(form)
    except (OverflowError, ValueError, OSError):  # year 1 and year 9999 have no local time everywhere
        return UNKNOWN
    return UNKNOWN if time is None else f"{shown}.{time.microsecond // 1000:03}" if ms else shown


def format_reward(value: float | None) -> str:
    """Format a reward in at most nine characters."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 1000:
        return f"{value:.3g}"
    return f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")


def format_rate(value: float | None) -> str:
    """Format a rate per second without the unit, such as ``0.4``, ``42`` and ``1.2k``."""
    if value is None or not math.isfinite(value) or value < 0:
        return UNKNOWN
    return f"{value:.1f}" if value < 9.95 else format_count(round(value))


def format_cost(value: float, currency: str = "") -> str:
    return format_amount(value, currency) if math.isfinite(value) else UNKNOWN


def format_count(number: int | None) -> str:
    """Format a count, such as ``950``, ``12k`` and ``3.4M``."""
    if number is None:
        return UNKNOWN
    if abs(number) >= 10**12:
        return "> 1T" if number > 0 else "< -1T"
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(number) >= size:
            short = number / size
            return f"{short:.0f}{letter}" if abs(short) >= 9.95 else f"{short:.1f}{letter}"
    return str(number)


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun, such as ``1 episode`` and ``1,200 episodes``; nouns must be trusted text."""
    shown = f"{number:,}" if abs(number) < 10**9 else format_count(number)
    return f"{shown} {noun if number == 1 else plural or f'{noun}s'}"


def format_size(number: int, unit: str = "B") -> str:
    """Format a number of bytes or of another unit, such as ``950 B``, ``12 kB``, ``3.4 MB`` and ``24 kJ``."""
    short = format_count(number)
    return f"{short} {unit}" if short[-1].isdigit() else f"{short[:-1]} {short[-1]}{unit}"


def format_gpu_memory(number: int | None) -> str:
    """Format a number of bytes in the unit that the drivers of GPUs use, such as ``0.3 GiB`` and ``79.6 GiB``."""
    return UNKNOWN if number is None else f"{number / 2**30:,.1f} GiB"


def format_energy(joules: float) -> str:
    return format_size(round(joules), "J")


def format_percent(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return percent_text(max(0.0, min(value, 100.0)) / 100)


def format_interval(bounds: tuple[float, float] | None) -> str:
    return UNKNOWN if bounds is None else "-".join(map(percent_text, bounds)).replace("%-", "-")


def rate_text(rate: float | None) -> str:
    """Format a rate from 0 to 1 as a percentage."""
    return format_percent(None if rate is None else 100 * rate)


def format_share(part: int, whole: int) -> str:
    return rate_text(part / whole if whole > 0 else None)


def progress_bar(share: float, width: int) -> str:
    full = round(max(0.0, min(share, 1.0)) * width)
    return "█" * full + "░" * (width - full)


def format_per_second(rate: float) -> str:
    """Format a rate per second with the unit, such as ``0.5/s`` and ``1.2k/s``; an empty text for zero."""
    return f"{format_rate(rate)}/s" if rate > 0 else ""


def format_time_left(seconds: float | None) -> str:
    """Format seconds that pass, such as ``12 s`` and ``3:21``; an en dash if they are not known."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{seconds:.0f} s" if seconds < 59.5 else format_duration(float(round(seconds)))

"""Amounts of money as text."""

from __future__ import annotations

import math
from typing import Final

_SMALLEST_AMOUNT: Final = 1e-8
_TRILLION: Final = 1e12


def format_amount(value: float, currency: str = "") -> str:
    """Format an amount of money without an exponent, such as ``0.0000123 USD``, ``1.25`` and ``12,300``."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= _TRILLION:
        text = f"{'> ' if value > 0 else '< -'}1T"
    elif size >= 1000 or size == 0:
        text = f"{value:,.0f}"
    elif size < _SMALLEST_AMOUNT:
        text = f"< {_SMALLEST_AMOUNT:.8f}"
    elif round(size, 3) >= 1:
        text = f"{value:.2f}"
    else:
        text = f"{value:.{2 - math.floor(math.log10(size))}f}".rstrip("0")  # three significant digits
    return f"{text} {currency}".rstrip()

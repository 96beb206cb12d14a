"""Calls into environments and agents, whose methods may be sync or async."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeGuard, TypeVar, cast

_T = TypeVar("_T")


def is_awaitable(value: _T | Awaitable[_T]) -> TypeGuard[Awaitable[_T]]:
    """Return whether ``value`` must be awaited; this check is cheaper than ``await maybe_await(value)``."""
    return hasattr(value, "__await__")


async def maybe_await(value: _T | Awaitable[_T]) -> _T:
    """Return ``value``, or the result of awaiting it if it is awaitable."""
    return await value if is_awaitable(value) else cast(_T, value)

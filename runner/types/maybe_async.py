"""Calls into environments and agents, whose methods may be sync or async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol, TypeGuard, TypeVar, cast

_T = TypeVar("_T")
_P = ParamSpec("_P")


def is_awaitable(value: _T | Awaitable[_T]) -> TypeGuard[Awaitable[_T]]:
    """Return whether ``value`` must be awaited; this check is cheaper than ``await maybe_await(value)``."""
    return hasattr(value, "__await__")


async def maybe_await(value: _T | Awaitable[_T]) -> _T:
    """Return ``value``, or the result of awaiting it if it is awaitable."""
    return await value if is_awaitable(value) else cast(_T, value)


class CallMethod(Protocol):
    """Calls a method that may be sync or async, on this thread or on another one, and returns its result."""

    async def __call__(self, method: Callable[_P, _T | Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call ``method`` and return its result."""


async def call_here(method: Callable[_P, _T | Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call ``method`` on this thread and return its result."""
    return await maybe_await(method(*args, **kwargs))

"""Calls into environments and agents, whose methods may be sync or async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeGuard, TypeVar, cast

_T = TypeVar("_T")
_P = ParamSpec("_P")


def is_awaitable(value: _T | Awaitable[_T]) -> TypeGuard[Awaitable[_T]]:
    """Cheaper than ``await maybe_await(value)``."""
    return hasattr(value, "__await__")


async def maybe_await(value: _T | Awaitable[_T]) -> _T:
    return await value if is_awaitable(value) else cast(_T, value)


def optional_method(owner: object, method: Callable[Concatenate[Any, _P], _T]) -> Callable[_P, _T] | None:
    """Return a method that an agent or environment may lack, bound to its owner; None without a method of that name.

    ``method`` is that of a protocol; ``isinstance`` with the protocol would take 10 to 40 us.
    """
    bound: Callable[_P, _T] | None = getattr(owner, method.__name__, None)
    return bound if callable(bound) else None


class CallMethod(Protocol):
    """Calls a method that may be sync or async, on this thread or on another one, and returns its result."""

    async def __call__(
        self, method: Callable[_P, _T | Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T: ...


async def call_here(method: Callable[_P, _T | Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    return await maybe_await(method(*args, **kwargs))

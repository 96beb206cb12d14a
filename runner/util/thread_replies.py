"""Replies that come from other threads, such as those of a table that all event loops of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


async def wait_for_reply(ask: Callable[[Callable[[_T], object]], object]) -> _T:
    """Call ``ask`` with what takes the reply, once and on any thread, and wait for it; a late one is ignored."""
    reply = Future[_T]()
    reply.set_running_or_notify_cancel()  # from now on, the end of the wait does not cancel it
    ask(reply.set_result)
    return reply.result() if reply.done() else await asyncio.wrap_future(reply)

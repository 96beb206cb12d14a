"""The callbacks of the thread that runs a node's batches."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runner.batch.observers import Observer, wants_all
from runner.batch.result import BatchResult
from runner.types import Item


def _ignore(_: BatchResult) -> None: ...


class BatchCallbacks(msgspec.Struct, frozen=True):
    """Callbacks of a ``BatchRunner``; they run on its threads and must return quickly.

    Attributes:
        on_item: receives the events and progress items of a running batch; must not change them.
        on_busy: receives True when a batch starts; after a batch, receives whether another one will start.
        on_end: receives the result of every batch that ends, also of one that can be resumed, unless the node stops.
    """

    on_item: Observer
    on_result: Callable[[BatchResult], None]
    on_busy: Callable[[bool], None]
    wants_item: Callable[[type[Item]], bool] = wants_all
    on_end: Callable[[BatchResult], object] = _ignore

"""Reads the load of the model servers of a foreground run, on a thread of its own so that a slow one delays nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runner.errors import catch_foreign, log_failure
from runner.inference.profile_models import Models

logger = logging.getLogger(__name__)

READ_INTERVAL_S = 2.0
"""Seconds between two readings, as of a node."""


@contextmanager
def reading_servers(models: Models) -> Iterator[None]:
    """Read the metrics of the model servers meanwhile, whose means split the time of each answer."""
    stopped = threading.Event()

    async def read() -> None:
        while not stopped.is_set():
            await models.manager.read_servers()
            await asyncio.to_thread(stopped.wait, READ_INTERVAL_S)

    def serve() -> None:
        with catch_foreign(log_failure(logger, "reading the model servers; answers are not split by their metrics:")):
            asyncio.run(read())

    threading.Thread(target=serve, name="model servers", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()

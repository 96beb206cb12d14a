"""The connection to NATS: addresses, streams, request and reply, reconnection.

nats-py is imported here without aiohttp, which takes longer than everything else and serves its ``ws://`` URLs alone,
which no address has; nats-py does without it where it is not installed.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from threading import get_ident


class _Hidden(MetaPathFinder):
    """Makes aiohttp look missing to this thread, since others may be importing it at the same time."""

    def __init__(self) -> None:
        self._thread = get_ident()

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "aiohttp" and get_ident() == self._thread:
            raise ModuleNotFoundError(name=fullname)


_hidden = _Hidden()
sys.meta_path = [_hidden, *sys.meta_path]  # a list of its own, as other threads may be iterating over the present one
try:
    import nats.aio.client  # noqa: F401
finally:
    sys.meta_path = [finder for finder in sys.meta_path if finder is not _hidden]

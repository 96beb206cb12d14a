"""The connection to NATS: addresses, streams, request and reply, reconnection.

nats-py is imported without the modules that it hardly uses, which take longer than everything else: aiohttp, needed
only for ``ws://`` URLs, the parser of e-mails, needed only for the headers of single messages of a stream, and
``importlib.metadata``, which only returns the version of nats-py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from runner.util.installed import installed_version
from runner.util.late_imports import ImportedOnUse, import_late

if TYPE_CHECKING:
    from email.message import Message


class _HeaderParser:
    """Stands for ``email.parser.BytesParser``, of which nats-py uses this method only."""

    def parsebytes(self, data: bytes) -> Message:
        from email.parser import BytesParser

        return BytesParser().parsebytes(data)


def _version(package: str) -> str:
    if (version := installed_version(package)) is None:
        raise LookupError(package)
    return version


import_late(  # before any module of this room imports nats-py
    ("nats.aio.transport", "nats.aio.client", "nats.js.client", "nats.js.manager"),
    {
        **{name: ImportedOnUse(name) for name in ("aiohttp", "multidict")},
        "email.parser": SimpleNamespace(BytesParser=_HeaderParser),
        "importlib.metadata": SimpleNamespace(version=_version),
    },
)

"""The connection to NATS: addresses, streams, request and reply, reconnection.

nats-py is imported without the modules that it hardly uses, which take longer than everything else: aiohttp (only for
``ws://`` URLs), key-value and object stores (nothing here uses them), the parser of e-mails (only for the headers of
single messages of a stream) and ``importlib.metadata`` (only for the version of nats-py).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from runner.plugins import installed_version
from runner.util.late_imports import ImportedOnUse, import_late

if TYPE_CHECKING:
    from email.message import Message

_OF_OBJECT_STORES: Final = (
    "OBJ_ALL_CHUNKS_PRE_TEMPLATE",
    "OBJ_ALL_META_PRE_TEMPLATE",
    "OBJ_STREAM_TEMPLATE",
    "VALID_BUCKET_RE",
    "ObjectStore",
)


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
        "nats.js.kv": SimpleNamespace(KeyValue=ImportedOnUse("nats.js.kv", "KeyValue")),
        "nats.js.object_store": SimpleNamespace(
            **{name: ImportedOnUse("nats.js.object_store", name) for name in _OF_OBJECT_STORES}
        ),
    },
)

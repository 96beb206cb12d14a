"""The connection to NATS: addresses, streams, request and reply, reconnection.

nats-py is imported without the modules that it hardly uses, which take longer than everything else: aiohttp (only for
``ws://`` URLs), and key-value and object stores (nothing here uses them).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

from runner.util.late_imports import ImportedOnUse, import_late

_OF_OBJECT_STORES: Final = (
    "OBJ_ALL_CHUNKS_PRE_TEMPLATE",
    "OBJ_ALL_META_PRE_TEMPLATE",
    "OBJ_STREAM_TEMPLATE",
    "VALID_BUCKET_RE",
    "ObjectStore",
)

import_late(  # before any module of this room imports nats-py
    ("nats.aio.transport", "nats.aio.client", "nats.js.client", "nats.js.manager"),
    {
        **{name: ImportedOnUse(name) for name in ("aiohttp", "multidict")},
        "nats.js.kv": SimpleNamespace(KeyValue=ImportedOnUse("nats.js.kv", "KeyValue")),
        "nats.js.object_store": SimpleNamespace(
            **{name: ImportedOnUse("nats.js.object_store", name) for name in _OF_OBJECT_STORES}
        ),
    },
)

"""The connection to NATS: addresses, streams, request and reply, reconnection."""

from runner.bus.lazy_imports import import_nats_lightly

import_nats_lightly()  # before any module of this room imports nats-py

"""The connection to NATS: addresses, streams, request and reply, reconnection."""

from runner.bus.lazy_websockets import import_websockets_late

import_websockets_late()  # before any module of this room imports nats-py

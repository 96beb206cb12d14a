"""Where events go besides the node's own broker."""

from __future__ import annotations

import os
from collections.abc import Callable

from runner.bus.address import BusAddress, address_from_environ
from runner.config import Profile


def egress_of(profile: Profile) -> Callable[[], BusAddress | None]:
    """``NATS_URL``, else the profile's ``nats.url``; read anew at each call, as credentials may change."""

    def read() -> BusAddress | None:
        url = os.environ.get("NATS_URL") or profile.nats.url
        return address_from_environ(url, os.environ) if url else None

    return read

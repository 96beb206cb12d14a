"""Under which names the outbox keeps the marks of a sink: one per address, so that no two brokers share them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from runner.errors import RunnerError
from runner.publish.outbox import LOCAL
from runner.publish.sink import Sink


def place_of(sink: Sink) -> str | None:
    """``local``, or the sink's name and its servers without user information; None while no address can be used."""
    if sink.name == LOCAL:
        return LOCAL
    try:
        address = sink.read_address()
        return None if address is None else f"{sink.name} {','.join(sorted(set(address.servers)))}"
    except RunnerError:  # whoever connects says why
        return None


def lock_of(outbox: Path, place: str) -> Path:
    """The file whose lock has who brings events to a place."""
    name, _, address = place.partition(" ")
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    return outbox.with_name(f"outbox.{name}-{digest}.lock" if address else f"outbox.{name}.lock")

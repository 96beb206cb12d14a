"""Which instances of servers are in use here.

A server with a fixed number of places gives out the oldest one again once all are taken, whether or not its episode is
over: two episodes would then play in the same one, and be told each other's rewards.
"""

from __future__ import annotations

import threading


class Leases:
    """Instances by server and id; shared by all threads of the process."""

    def __init__(self) -> None:
        """Start with none in use."""
        self._held: set[tuple[str, int | str]] = set()
        self._guard = threading.RLock()  # garbage is collected anywhere, also while this thread takes one

    def take(self, server: str, instance: int | str) -> bool:
        """Whether the instance was free; it is taken now."""
        with self._guard:
            free = (server, instance) not in self._held
            self._held.add((server, instance))
            return free

    def release(self, server: str, instance: int | str) -> None:
        """Let others have it."""
        with self._guard:
            self._held.discard((server, instance))


LEASES = Leases()

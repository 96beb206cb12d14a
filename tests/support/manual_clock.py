from __future__ import annotations


class ManualClock:
    """A monotonic clock that tests advance by setting ``now``, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

"""Streamed model output of an episode: the many small deltas of a model, merged into a few per second."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runner.types import DeltaPart, StreamDelta

EMIT_INTERVAL_S = 0.1
"""Minimum seconds between two emissions, so that a fast model does not cause one event per token."""


class TokenStream:
    """Merges the stream deltas of each step; not thread-safe.

    Args:
        now: a monotonic clock in seconds.
        emit: called with the index of the step and a merged delta; each part of an answer (reasoning, text, each tool
            call) has its own deltas.
    """

    def __init__(self, now: Callable[[], float], emit: Callable[[int, StreamDelta], None]) -> None:
        """Start without deltas."""
        self._now = now
        self._emit = emit
        self._step = 0
        self._pending: dict[tuple[DeltaPart, int], list[StreamDelta]] = {}
        self._last_emit = 0.0
        self._has_emitted = False

    def start_step(self, step: int) -> None:
        """Begin the step with this index: later deltas belong to it, and pending deltas are discarded."""
        self._step = step
        self._has_emitted = False
        self._pending.clear()

    def add(self, delta: str | StreamDelta) -> None:
        """Add a delta; an empty string discards all deltas of the current step, because the answer starts again."""
        if not isinstance(delta, StreamDelta):
            delta = StreamDelta(text=delta, n=1) if delta else StreamDelta(restart=True)
        if delta.restart:
            self._restart(delta)
        elif delta.endpoint is not None or delta.failure is not None:
            self.flush()
            self._emit(self._step, delta)
        else:
            self._pending.setdefault((delta.part, delta.call), []).append(delta)
            if self._now() - self._last_emit >= EMIT_INTERVAL_S:
                self.flush()

    def flush(self) -> None:
        """Emit the deltas that were added but not yet emitted."""
        for deltas in self._pending.values():
            self._emit(self._step, _merge(deltas))
            self._has_emitted = True
        self._pending.clear()
        self._last_emit = self._now()

    def close(self) -> None:
        """Discard the pending deltas, and ignore all later ones."""
        self._pending.clear()
        self._emit = _ignore

    def _restart(self, delta: StreamDelta) -> None:
        # Nothing to take back if no delta of the failed endpoint was emitted.
        self._pending.clear()
        if self._has_emitted or delta.failure is not None:
            self._emit(self._step, msgspec.structs.replace(delta, restart=self._has_emitted))
        self._has_emitted = False


def _ignore(step: int, delta: StreamDelta) -> None:
    pass


def _merge(deltas: list[StreamDelta]) -> StreamDelta:
    tool = next((delta.tool for delta in deltas if delta.tool), "")
    text, n = "".join(delta.text for delta in deltas), sum(delta.n for delta in deltas)
    return msgspec.structs.replace(deltas[0], text=text, tool=tool, n=n)

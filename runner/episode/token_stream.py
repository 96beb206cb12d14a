"""The answer of a model while it comes: many small pieces, told a few times a second."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runner.types import Part, Piece

COALESCE_S = 0.1
"""Seconds between two tellings, so that a fast model does not make an item of each token."""


class TokenStream:
    """Collects the pieces of one round after the other; used on the loop that plays.

    Args:
        now: a monotonic clock in seconds.
        tell: takes the round's index and what came since the last telling, each part of the answer by itself.
    """

    def __init__(self, now: Callable[[], float], tell: Callable[[int, Piece], None]) -> None:
        """Start before the first round."""
        self._now = now
        self._tell = tell
        self._step = 0
        self._pending: dict[tuple[Part, int], list[Piece]] = {}
        self._told = 0.0
        self._has_told = False

    def begin(self, step: int) -> None:
        """What comes from here on belongs to round ``step``."""
        self._step = step
        self._has_told = False
        self._pending.clear()

    def add(self, piece: str | Piece) -> None:
        """Take the next piece; an empty text takes back what came so far."""
        if not isinstance(piece, Piece):
            piece = Piece(text=piece, n=1) if piece else Piece(restart=True)
        if piece.restart:
            self._restart(piece)
        elif piece.endpoint is not None or piece.failure is not None:
            self.flush()
            self._tell(self._step, piece)
        else:
            self._pending.setdefault((piece.part, piece.call), []).append(piece)
            if self._now() - self._told >= COALESCE_S:
                self.flush()

    def flush(self) -> None:
        """Tell what has not been told."""
        for pieces in self._pending.values():
            self._tell(self._step, _together(pieces))
            self._has_told = True
        self._pending.clear()
        self._told = self._now()

    def _restart(self, piece: Piece) -> None:
        """What came does not count: its endpoint failed. Of what was never told nothing is taken back."""
        self._pending.clear()
        if self._has_told or piece.failure is not None:
            self._tell(self._step, msgspec.structs.replace(piece, restart=self._has_told))
        self._has_told = False


def _together(pieces: list[Piece]) -> Piece:
    """Pieces of the same part as one."""
    tool = next((piece.tool for piece in pieces if piece.tool), "")
    text, n = "".join(piece.text for piece in pieces), sum(piece.n for piece in pieces)
    return msgspec.structs.replace(pieces[0], text=text, tool=tool, n=n)

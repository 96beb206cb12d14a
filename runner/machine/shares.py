"""Divides a measured quantity among the episodes that run meanwhile, equally at each moment."""

from __future__ import annotations


class ShareLedger:
    """Divides amounts, such as joules, among episodes by time.

    An amount becomes known only at the end of an interval, but an episode may end within it. Such an episode gets its
    share at the rate of the previous interval, and the episodes that go on get the rest. Nothing is lost or counted
    twice: what was added is in the episodes' amounts, ``carry`` and ``unassigned``.

    Times are seconds of one monotonic clock and must not decrease.

    Attributes:
        carry: what episodes that ended got in excess, as a negative number; the next intervals pay for it.
        unassigned: the amounts of times at which no episode ran.
    """

    def __init__(self) -> None:
        self.carry = 0.0
        self.unassigned = 0.0
        self._amounts: dict[str, float | None] = {}
        self._marks: dict[str, float] = {}
        self._share_s = 0.0  # the share of an episode that has run since the first moment
        self._now: float | None = None
        self._begin: float | None = None
        self._occupied_s = 0.0
        self._rate: float | None = None

    @property
    def running(self) -> dict[str, float | None]:
        return dict(self._amounts)

    def start(self, episode_id: str, now: float) -> None:
        self._advance(now)
        self._amounts[episode_id], self._marks[episode_id] = None, self._share_s

    def stop(self, episode_id: str, now: float) -> float | None:
        """Return None if nothing was measured while the episode ran."""
        self._advance(now)
        amount = self._amounts.pop(episode_id, None)
        share_s = self._share_s - self._marks.pop(episode_id, self._share_s)
        if self._rate is None or not share_s:
            return amount
        estimate = self._rate * share_s
        self.carry -= estimate
        return (amount or 0.0) + estimate

    def add(self, amount: float | None, now: float) -> None:
        """Divide the amount of the time since the previous call; None: it is unknown.

        A negative amount corrects earlier ones; the next amounts pay for it.
        """
        self._advance(now)
        seconds = 0.0 if self._begin is None else now - self._begin
        if amount is not None and seconds > 0:
            self._rate = max(0.0, amount / seconds)
            self._divide(amount, self._occupied_s / seconds)
        else:
            self._rate, self.unassigned = None, self.unassigned + (amount or 0.0)
        self._begin, self._occupied_s = now, 0.0
        self._marks = dict.fromkeys(self._marks, self._share_s)

    def _divide(self, amount: float, occupied: float) -> None:
        used = amount * occupied
        self.unassigned += amount - used
        self.carry += used
        shares = {episode_id: self._share_s - mark for episode_id, mark in self._marks.items()}
        total = sum(shares.values())
        if total <= 0:
            self.unassigned, self.carry = self.unassigned + self.carry, 0.0
            return
        divided = max(0.0, self.carry)
        self.carry -= divided
        for episode_id, share_s in shares.items():
            self._amounts[episode_id] = (self._amounts[episode_id] or 0.0) + divided * share_s / total

    def _advance(self, now: float) -> None:
        if self._now is not None and self._marks:
            self._share_s += (now - self._now) / len(self._marks)
            self._occupied_s += now - self._now
        self._now = now

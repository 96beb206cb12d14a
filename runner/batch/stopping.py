"""What ends a batch early or holds it up: its budget, a narrow interval of its success rate, a server that is gone.

With adaptive repeats, a batch is played in parts until the interval of its success rate is narrow enough. The interval
is looked at only after 32, 64, 128, … episodes, and the rule depends on nothing else. A rule that looked after each
episode would stop at lucky moments, and its interval would miss the true rate more often than it promises. With these
few looks the 95% interval keeps a coverage of 95% on average over the true rates from 1% to 99%, and of 92% for the
worst of them that a test computes.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

import msgspec

from runner.batch.spec import Adaptive, BatchSpec
from runner.envs.http.server import ServerAddress, ServerState, probe_servers
from runner.envs.placement import Placement, http_placement
from runner.results.statistics import wilson_interval
from runner.store import EpisodeRecord
from runner.types import UNFINISHED, Budget, Outcome
from runner.util.amounts import format_amount
from runner.util.clock import Clock
from runner.util.display_text import mask, one_line, pluralize

logger = logging.getLogger(__name__)

MAX_ERROR_CHARS = 300
"""Maximum length of the error that is quoted as the reason of an interruption."""


class BudgetWatch:
    """Adds up the cost, tokens and errors of the episodes of one run of a batch, in the order in which they end.

    Episodes that are running count when they end, so a batch may exceed its budget by what these use. ``budget`` may be
    replaced meanwhile.
    """

    def __init__(self, budget: Budget | None, currency: str = "") -> None:
        self.budget = budget or Budget()
        self._currency = currency
        self._cost = 0.0
        self._n_unpriced = 0
        self._n_tokens = 0
        self._n_errors = 0
        self._last_error = ""

    def add(self, record: EpisodeRecord) -> str | None:
        """Add an ended episode; return which limit is reached, with the numbers, or None.

        Interrupted and cancelled ones count with their tokens and cost, and neither continue nor end a row of errors.
        """
        self._cost += record.cost or 0.0
        self._n_unpriced += any(step.tokens is not None and step.cost is None for step in record.timesteps)
        self._n_tokens += record.tokens.total
        if record.outcome is Outcome.ERROR:
            self._n_errors += 1
            text = "" if record.error is None else f"{record.error.type}: {record.error.message}"
            self._last_error = one_line(mask(text), MAX_ERROR_CHARS)
        elif record.outcome not in UNFINISHED:
            self._n_errors = 0
        budget = self.budget
        if budget.cost is not None and self._cost >= budget.cost:
            unpriced = f", without {pluralize(self._n_unpriced, 'episode')} that had answers without a price"
            cost, limit = (format_amount(each, self._currency) for each in (self._cost, budget.cost))
            return f"its episodes cost {cost}{unpriced * bool(self._n_unpriced)}, the budget is {limit}"
        if budget.tokens is not None and self._n_tokens >= budget.tokens:
            return f"its episodes used {self._n_tokens} tokens, the budget is {budget.tokens}"
        if budget.errors_in_a_row is not None and self._n_errors >= budget.errors_in_a_row:
            return f"{self._n_errors} episodes in a row ended with an error; the last one: {self._last_error}"
        return None


FIRST_LOOK = 32
"""Episodes until the interval is looked at for the first time; each further look comes after twice as many."""


def planned_looks(n_max: int) -> list[int]:
    looks = [FIRST_LOOK << i for i in range(n_max.bit_length()) if FIRST_LOOK << i < n_max]
    return [*looks, n_max]


def is_narrow(successes: int, n: int, width: float) -> bool:
    low, high = wilson_interval(successes, n)
    return high - low <= width


def first_part(spec: BatchSpec, width: float) -> BatchSpec:
    """Return the part of a batch up to its first look; its ``repeat`` tasks are the maximum."""
    adaptive = Adaptive(width=width, task_index=spec.task_index, repeat=spec.repeat)
    return msgspec.structs.replace(spec, repeat=planned_looks(spec.repeat)[0], adaptive=adaptive)


def next_part(spec: BatchSpec, successes: int, n: int, budget: Budget | None) -> BatchSpec | None:
    """Return the part that follows a completed one; None if the interval is narrow enough, or nothing is left.

    ``successes`` and ``n``, the scored episodes, are those of all parts so far; ``budget`` is what the part has left.
    """
    if (adaptive := spec.adaptive) is None or is_narrow(successes, n, adaptive.width) or is_used_up(budget):
        return None
    n_played = spec.task_index + spec.repeat - adaptive.task_index
    look = next((look for look in planned_looks(adaptive.repeat) if look > n_played), None)
    if look is None:
        return None
    first = adaptive.task_index + n_played
    return msgspec.structs.replace(spec, task_index=first, repeat=look - n_played, budget=budget)


def budget_left(budget: Budget | None, cost: float, n_tokens: int) -> Budget | None:
    if budget is None:
        return None
    return msgspec.structs.replace(
        budget,
        cost=None if budget.cost is None else budget.cost - cost,
        tokens=None if budget.tokens is None else budget.tokens - n_tokens,
    )


def is_used_up(budget: Budget | None) -> bool:
    return budget is not None and any(left is not None and left <= 0 for left in (budget.cost, budget.tokens))


CHECK_INTERVAL_S = 0.5
"""Seconds between two health checks of a server that is gone."""
LOG_INTERVAL_S = 10
"""Seconds between two log messages about the same wait."""
MAX_SERVER_CHARS = 300


class Waiting(msgspec.Struct, frozen=True):
    """A wait in progress: the server with its problem, and the whole seconds left until the batch is interrupted."""

    server: str
    left_s: float


class ServerChecked(msgspec.Struct, frozen=True):
    """Message from a ``ServerWatch`` to its batch: the result of a health check."""

    watch: ServerWatch
    state: ServerState


class ServerWatch:
    """Checks one server on a daemon thread until ``close``; the first check starts at once."""

    def __init__(
        self, env: str, address: ServerAddress, on_checked: Callable[[ServerChecked], object], interval_s: float
    ) -> None:
        self._env = env
        self._address = address
        self._on_checked = on_checked
        self._interval_s = interval_s
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="server watch", daemon=True).start()

    def close(self) -> None:
        """Returns without waiting for the current check."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            state = probe_servers({self._env: self._address})[self._env]
            self._on_checked(ServerChecked(self, state))
            self._closed.wait(self._interval_s)


class ServerWait:
    """Decides whether a batch waits for its server; only the batch's thread calls it, any thread may read ``waiting``.

    A wait starts when an episode finds the server gone. The first health check shows whether it is: an error
    as reply ends the wait at once. Later checks end it only if the batch's own server replies, since a server that
    starts may reply with errors first, and another program may have taken its port.

    Args:
        placement: where the batch runs; a wait is possible only on a server, with ``wait_s`` above 0.
        on_checked: called with the result of each health check, on another thread.
    """

    def __init__(
        self,
        batch_id: str,
        env: str,
        placement: Placement,
        clock: Clock,
        on_checked: Callable[[ServerChecked], object],
        interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self._subject = f"batch {batch_id}: the server of {env}"
        self._env = env
        self._placement = placement
        self._now = clock.monotonic
        self._on_checked = on_checked
        self._interval_s = interval_s
        self._watch: ServerWatch | None = None
        self._ends_at = 0.0
        self._frozen_s: float | None = None
        self._reported_s: float | None = None
        self.waiting: Waiting | None = None
        """The wait, once a health check has shown that the server is gone; None while the batch plays."""

    @property
    def is_possible(self) -> bool:
        return self._placement.address is not None and self._placement.wait_s > 0

    @property
    def active(self) -> bool:
        """Whether no episode may start: the server is being checked, or is gone."""
        return self._watch is not None

    @property
    def remaining_s(self) -> float:
        """Seconds until the wait is over; infinite if there is no wait, or while it is paused."""
        if self._watch is None or self._frozen_s is not None:
            return math.inf
        return self._ends_at - self._now()

    @property
    def expiry(self) -> str | None:
        """Description of a server that did not come back in time; None otherwise."""
        if self.waiting is None or self.remaining_s > 0:
            return None
        return f"its server did not reply for {self._placement.wait_s:g} s ({self.waiting.server})"

    def begin(self, *, paused: bool) -> None:
        """Start to check the server, unless a check is in progress; the time of a paused batch does not run."""
        if self._watch is not None or self._placement.address is None:
            return
        self._ends_at = self._now() + self._placement.wait_s
        self._watch = ServerWatch(self._env, self._placement.address, self._on_checked, self._interval_s)
        self.set_paused(paused)

    def set_paused(self, paused: bool) -> None:
        if paused and self._watch is not None and self._frozen_s is None:
            self._frozen_s = self.remaining_s
        elif not paused and self._frozen_s is not None:
            self._ends_at, self._frozen_s = self._now() + self._frozen_s, None

    def is_back(self, checked: ServerChecked) -> bool:
        """Return whether a health check ends the wait, so that episodes may start again."""
        if checked.watch is not self._watch:
            return False
        problem = self._problem(checked.state)
        replies_with_errors = not checked.state.gone and checked.state.http_status != 200
        if problem is None or (self.waiting is None and replies_with_errors):
            if self.waiting is not None:
                logger.warning("%s replies again; the batch continues", self._subject)
            self.close()
            return True
        server = one_line(f"{checked.state.address.base}: {problem}", MAX_SERVER_CHARS)
        if self.waiting is None:
            what = "busy" if checked.state.status == "busy" else "gone"
            logger.warning("%s is %s (%s); waiting %g s for it", self._subject, what, server, self._placement.wait_s)
        self.waiting = Waiting(server, self._left_s())
        return False

    def tick(self) -> bool:
        """Update ``waiting``; return whether the seconds left changed since the last call."""
        if self.waiting is None:
            return False
        left_s, before_s = self._left_s(), self._reported_s
        if left_s == before_s:
            return False
        self.waiting, self._reported_s = Waiting(self.waiting.server, left_s), left_s
        if before_s is not None and left_s % LOG_INTERVAL_S == 0:
            logger.warning("%s is still gone (%s); %g s left", self._subject, self.waiting.server, left_s)
        return True

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = self._frozen_s = self._reported_s = self.waiting = None

    def _left_s(self) -> float:
        return float(max(0, math.ceil(self.remaining_s if self._frozen_s is None else self._frozen_s)))

    def _problem(self, state: ServerState) -> str | None:
        if not state.usable:
            return state.cause or "it is not usable"
        now, before = http_placement(state), self._placement
        if now.kind != before.kind:
            return f"another server replies there: {now.note}"
        return None

"""The budget of a batch: adds up what its episodes use until a limit is reached."""

from __future__ import annotations

from runner.config import AgentSettings
from runner.store import EpisodeRecord
from runner.types import UNFINISHED, Budget, Outcome
from runner.util.amounts import format_amount
from runner.util.display_text import mask, one_line, pluralize

MAX_ERROR_CHARS = 300
"""Maximum length of the error that is quoted as the reason of an interruption."""


def unpriced_note(budget: Budget | None, model: str | None, settings: AgentSettings) -> str | None:
    """Return which models have no price, so that a budget of cost does not limit their answers; None if it does."""
    if budget is None or budget.cost is None or model is None:
        return None
    fallback = settings.local_fallback
    models = [model, *(each.model or model for each in settings.endpoints), *([fallback] if fallback else [])]
    unpriced = [name for name in dict.fromkeys(models) if name not in settings.price]
    if not unpriced:
        return None
    names = ", ".join(one_line(name, 100) for name in unpriced)
    return f"no price for {names}: such answers count as 0 in the budget of cost; set agent.price, or limit tokens, too"


class BudgetWatch:
    """Adds up the cost, tokens and errors of the episodes of one run of a batch, in the order in which they end.

    Episodes that are running count when they end, so a batch may exceed its budget by what these use.
    """

    def __init__(self, budget: Budget | None, currency: str = "") -> None:
        self._budget = budget or Budget()
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
        return self._reached()

    def _reached(self) -> str | None:
        budget = self._budget
        if budget.cost is not None and self._cost >= budget.cost:
            unpriced = f", without {pluralize(self._n_unpriced, 'episode')} that had answers without a price"
            cost, limit = (format_amount(each, self._currency) for each in (self._cost, budget.cost))
            return f"its episodes cost {cost}{unpriced * bool(self._n_unpriced)}, the budget is {limit}"
        if budget.tokens is not None and self._n_tokens >= budget.tokens:
            return f"its episodes used {self._n_tokens} tokens, the budget is {budget.tokens}"
        if budget.errors_in_a_row is not None and self._n_errors >= budget.errors_in_a_row:
            return f"{self._n_errors} episodes in a row ended with an error; the last one: {self._last_error}"
        return None

"""The planner that knows the gold query."""

from __future__ import annotations


class SQLGymOracle:
    """Answers with the query that the task was made with.

    Args:
        gold: that query.
    """

    def __init__(self, gold: str) -> None:
        self._gold = gold

    def next_action(self) -> str:
        """The gold query; there is only one step."""
        return self._gold

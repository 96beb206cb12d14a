"""An episode that the oracle follows on a twin of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.envs.base import EmbeddedEnvironment
from runner.errors import boundary
from runner.serve.mock_llm.conversation import Turn
from runner.serve.mock_llm.task_matcher import Seat, make, observed
from runner.types import OraclePlanner, SupportsOracle


@dataclass
class Session:
    """A twin after some turns, its planner, and the plan for the next turn once one was asked for.

    Attributes:
        others: further tasks that the conversation may be about, should it turn out not to be this one.
        checked: whether what the twin shows has to be what the conversation says.
    """

    seat: Seat
    twin: EmbeddedEnvironment
    planner: OraclePlanner
    others: Iterator[Seat]
    checked: bool
    turns: tuple[Turn, ...] = ()
    done: bool = False
    plan: str | None = None

    def take(self, turn: Turn) -> bool:
        """Play a turn on the twin; whether it went as the conversation says."""
        chat, _, self.done = self.twin.step(turn.action)
        self.turns, self.plan = (*self.turns, turn), None
        return not self.checked or observed(chat) in turn.seen

    def next_action(self) -> str:
        """The planner's next action; the same until a turn is taken."""
        if self.plan is None:
            self.plan = self.planner.next_action()
        return self.plan


def replayed(seats: Iterable[Seat], turns: tuple[Turn, ...], *, checked: bool) -> Session | None:
    """A session of the first of the tasks in which these turns go as the conversation says."""
    others = iter(seats)
    for seat in others:
        session = _begun(seat, others, checked=checked)
        if session is not None and _all_taken(session, turns):
            return session
    return None


def _begun(seat: Seat, others: Iterator[Seat], *, checked: bool) -> Session | None:
    twin = make(seat.env, seat.mode)
    twin.reset(task_index=seat.task_index)
    if not isinstance(twin, SupportsOracle):
        return None
    return Session(seat, twin, twin.oracle(None), others, checked)


def _all_taken(session: Session, turns: tuple[Turn, ...]) -> bool:
    went: list[bool] = []
    with boundary(lambda exc: went.append(False)):  # a step after the end, for one
        went.append(all(session.take(turn) for turn in turns))
    return went[0]

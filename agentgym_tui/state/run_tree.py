"""Tree of what runs, waits or ended lately: batteries, their batches, and the episodes of those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import model_runs
from agentgym_tui.state.query import FieldSet, FilteredList, search_text

if TYPE_CHECKING:
    from agentgym_tui.state.run_store import RunStore

_ORDER: Final = {"running": 0, "paused": 0, "queued": 1, "interrupted": 2}
_ENDED: Final = 3
_LAST: Final = 1_000_000


RUN_FIELDS: Final[FieldSet[BatchRun]] = FieldSet(
    ("env", "text", "environment", lambda batch: batch.env),
    ("status", "text", "status of the batch", lambda batch: batch.status),
    ("agent", "text", "agent", lambda batch: batch.agent),
    ("model", "text", "model that answered; none for a baseline", lambda batch: model_runs(batch.models)),
    ("node", "text", "name of the node", lambda batch: batch.node),
    ("batch", "id", "beginning of its id", lambda batch: batch.batch_id),
    ("battery", "id", "beginning of the id of its battery", lambda batch: batch.battery_id),
    ("episodes", "number", "number of ended episodes", lambda batch: batch.n_done),
    ("planned", "number", "number of planned episodes", lambda batch: batch.n_planned),
    ("successes", "number", "number of successful episodes", lambda batch: batch.n_success),
    ("errors", "number", "number of episodes that ended with an error", lambda batch: batch.n_errors),
    ("reward", "number", "mean reward", lambda batch: batch.mean_reward),
    ("cost", "number", "sum of the costs", lambda batch: batch.cost),
    ("time", "duration", "seconds from its first episode to its end", lambda batch: batch.duration_s),
    (
        "since",
        "since",
        "ended, or started, since an age or a time: 2h, 3d, 2026-11-26",
        lambda batch: batch.ended_at or batch.started_at,
    ),
    ("until", "until", "ended, or started, until then", lambda batch: batch.ended_at or batch.started_at),
    values={"status": ("running", "paused", "queued", "interrupted", "completed", "cancelled")},
)


class RunRow(NamedTuple):
    """A line of the tree: a battery, a batch or an episode."""

    key: str
    depth: int  # number of enclosing lines
    batches: Sequence[BatchRun]  # those of the battery; else only the batch
    battery_id: str | None = None  # None for a batch or an episode
    episode: Episode | None = None
    is_open: bool = False

    @property
    def run_id(self) -> str:
        """For requests."""
        return self.battery_id or self.batches[0].batch_id

    @property
    def status(self) -> str:
        """Status of the batch; of a battery, that of its batch that is furthest from a complete end."""
        statuses = (batch.status for batch in self.batches)
        return min(statuses, key=lambda status: (_ORDER.get(status, _ENDED), status == "completed"))


class RunTree:
    """The lines of the tree: what runs, then what waits, what was interrupted, and what ended, the newest first.

    The filter of ``batches`` selects batches; a battery is shown while one of them is, and its line describes all.
    """

    def __init__(self) -> None:
        self.batches = FilteredList(lambda batch: batch.batch_id, _search_text, {}, RUN_FIELDS)
        self.rows: list[RunRow] = []
        self._opened: set[str] = set()
        self._places: dict[str, int] = {}

    def update(self, store: RunStore) -> None:
        groups = defaultdict[str, list[BatchRun]](list)
        self.batches.set_rows([*store.batches.values()])
        for batch in self.batches.all_rows:
            groups[batch.battery_id or batch.batch_id].append(batch)
        numbered = enumerate(reversed(groups.items()))  # the newest first
        self.rows = [
            row
            for _, (run_id, batches) in sorted(numbered, key=lambda each: _rank(each[0], each[1][1]))
            if any(map(self._is_shown, batches))
            for row in self._rows_of(store, run_id if any(batch.battery_id for batch in batches) else None, batches)
        ]
        self._places = {row.key: place for place, row in enumerate(self.rows)}

    def toggle(self, key: str) -> None:
        self._opened ^= {key}

    def place_of(self, key: str) -> int | None:
        return self._places.get(key)

    def get(self, key: str) -> RunRow | None:
        return None if (place := self._places.get(key)) is None else self.rows[place]

    def last_place_below(self, place: int) -> int:
        """``place`` itself if no line is below it."""
        depth = self.rows[place].depth
        below = takewhile(lambda row: row.depth > depth, self.rows[place + 1 :])
        return place + sum(1 for _ in below)

    def _is_shown(self, batch: BatchRun) -> bool:
        return self.batches.place_of(batch.batch_id) is not None

    def _rows_of(self, store: RunStore, battery_id: str | None, batches: list[BatchRun]) -> Iterator[RunRow]:
        depth = 0
        if battery_id is not None:
            key = f"battery {battery_id}"
            yield RunRow(key, 0, batches, battery_id, is_open=key in self._opened)
            if key not in self._opened:
                return
            depth = 1
        for batch in filter(self._is_shown, batches):
            key = f"batch {batch.batch_id}"
            yield RunRow(key, depth, [batch], is_open=key in self._opened)
            if key in self._opened:
                for episode in reversed(store.episodes_of(batch.batch_id)):
                    yield RunRow(f"episode {episode.episode_id}", depth + 1, [batch], episode=episode)


def _search_text(batch: BatchRun) -> str:
    return search_text(
        (batch.env, batch.agent, batch.models, batch.status, batch.node, batch.batch_id, batch.battery_id)
    )


def _rank(number: int, batches: Sequence[BatchRun]) -> tuple[int, float, int]:
    """Consoles hear of batches in different orders, so ended runs stand by their end."""
    order = min(_ORDER.get(batch.status, _ENDED) for batch in batches)
    if order == _ENDED:
        return order, -max((each.ended_at.timestamp() for each in batches if each.ended_at), default=0.0), number
    positions = [batch.position for batch in batches if batch.status == "queued" and batch.position is not None]
    return order, min(positions, default=_LAST) if order == _ORDER["queued"] else 0, number


def waiting_runs(store: RunStore) -> list[str]:
    """Return the ids of batteries, and of batches without one, in the order in which they run."""
    waiting = [batch for batch in store.batches.values() if batch.status == "queued"]
    waiting.sort(key=lambda batch: _LAST if batch.position is None else batch.position)
    return list(dict.fromkeys(batch.battery_id or batch.batch_id for batch in waiting))

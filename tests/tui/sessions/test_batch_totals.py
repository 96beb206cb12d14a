"""Sums over the stored episodes of batches, and batches that no node lists, from a real index."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict
from ulid import ULID

from agentgym_tui.sessions.library import StateDirLibrary, read_batch_totals
from agentgym_tui.state.run_store import RunStore
from runner.batch.workspace import Workspace
from runner.types import EvaluatedTrajectory, Outcome
from runner.types.episode_events import EpisodeEnded
from tests.support.episodes import RecordedEpisode, make_trajectory


def test_totals_count_what_is_scored_and_errors_apart(workspace: Workspace) -> None:
    first, second = str(ULID()), str(ULID())
    outcomes = [Outcome.SUCCESS, Outcome.FAILURE, Outcome.ERROR, Outcome.INTERRUPTED]
    for batch_id, outcome in [*((first, outcome) for outcome in outcomes), (second, Outcome.FAILURE)]:
        fields: dict[str, Any] = {"batch_id": batch_id}
        recording = RecordedEpisode(workspace.store, workspace.index, **fields)
        recording.start()
        recording.end(outcome=outcome, success=outcome == Outcome.SUCCESS)
    unscored = RecordedEpisode(workspace.store, workspace.index, batch_id=first)
    unscored.start()
    known = asdict(make_trajectory(unscored.header, []))
    unscored.send(EpisodeEnded, trajectory=EvaluatedTrajectory(**known, evaluation={"rated": False}))
    library = StateDirLibrary(lambda: workspace.data_dir)
    totals = {each.batch_id: each for each in read_batch_totals(library.result_source(), [first, second, "'; --"])}
    library.close()
    assert totals.keys() == {first, second}
    assert (totals[first].n_rated, totals[first].n_success, totals[first].n_errors) == (2, 1, 1)
    assert (totals[second].n_rated, totals[second].n_success, totals[second].n_errors) == (1, 0, 0)
    started_at, ended_at = totals[first].started_at, totals[first].ended_at
    assert started_at is not None and ended_at is not None and started_at <= ended_at


def test_ended_batches_of_commands_without_a_node_are_found(workspace: Workspace) -> None:
    whole, stopped, running, listed = (str(ULID()) for _ in range(4))
    for batch_id, n_planned in ((whole, 2), (whole, 2), (stopped, 3), (running, 2), (listed, 1)):
        recording = RecordedEpisode(
            workspace.store,
            workspace.index,
            batch_id=batch_id,
            n_planned=n_planned,
            env="Maze",
            agent="react",
            model="m",
        )
        recording.record_episode(1)
    playing = RecordedEpisode(workspace.store, workspace.index, batch_id=running, n_planned=2)
    playing.start()
    library = StateDirLibrary(lambda: workspace.data_dir)
    found = library.unlisted_batches([listed])
    assert library.n_unlisted([listed, "unknown"]) == 3
    library.close()
    playing.end()
    assert [(state.batch_id, state.status, state.n_done, state.n_planned) for state in found] == [
        (batch_id, status, n_done, n_planned)
        for batch_id, status, n_done, n_planned in sorted(
            [(whole, "completed", 2, 2), (stopped, "interrupted", 1, 3)], reverse=True
        )
    ]
    store = RunStore()
    store.apply_unlisted(found)
    assert store.batches[whole].env == "Maze"
    assert store.batches[whole].status == "completed"
    assert set(store.batch_registry.without_totals()) == {whole, stopped}

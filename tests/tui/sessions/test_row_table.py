from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tui.sessions.file_library import row_table
from agentgym_tui.sessions.session import FileSession
from runner.errors import StoreError
from runner.results.summary import Selection, summarize_results
from runner.results.task_matrix import task_matrices
from runner.store import EpisodeStore, open_index
from tests.support.console.result_sessions import NEW, OLD, results_session
from tests.support.console.samples import row
from tests.support.episodes import record_episodes


def test_rows_in_memory_have_the_results_of_their_episodes() -> None:
    table = row_table(results_session().fake_library.stored)
    rates = {(row.env, row.agent, row.model): (row.n, row.n_rated) for row in summarize_results(table)}
    assert rates["Wordle", "react", "llama4-scout"] == (48, 37)
    assert [row.batch_id for row in summarize_results(table, Selection(agent="react"), by_batch=True)][1:] == [NEW, OLD]
    (matrix,) = task_matrices(table, Selection(batch=OLD))
    assert [len(task.attempts) for task in matrix.tasks] == [4] * 12


def test_values_that_sqlite_cannot_hold_are_kept_as_near_as_possible() -> None:
    table = row_table([row(0), row(1, task_index=2**70), row(2, env="\ud800")])
    assert sum(result.n for result in summarize_results(table)) == 3
    with pytest.raises(StoreError, match="no such column"):
        table.select("SELECT other FROM episodes")


async def test_opened_files_and_the_index_have_the_same_results(tmp_path: Path) -> None:
    record_episodes(tmp_path, 3)
    session = FileSession([tmp_path])
    assert session.library is not None
    assert summarize_results(session.library.result_source()) == []
    await session.run()
    index = open_index(EpisodeStore(tmp_path))
    expected = summarize_results(index, by_batch=True)
    index.close()
    assert summarize_results(session.library.result_source(), by_batch=True) == expected
    assert session.library.result_source() is session.library.result_source()

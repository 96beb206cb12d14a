"""The journal of an unfinished episode: what is readable becomes an episode file."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from runner.errors import StoreError
from runner.store.journal import JOURNAL_SUFFIX, Journal, read_journal, unfinished_record
from runner.types import Outcome
from tests.fuzz.oracles import outcome, scratch_folder
from tests.fuzz.targets.episode_file import BATCH, EPISODE, check_record

TOKENS = (b'"reset_observation":', b'"env_episode_id":', b'"tool_schemas":[[]]', b'"traces":{"spans":[]}', b"\n{")
AT = datetime(2026, 3, 4, 6, tzinfo=UTC)
FOLDER = scratch_folder("journal")
PATH = FOLDER / BATCH / f"{EPISODE}{JOURNAL_SUFFIX}"
PATH.parent.mkdir()


def check(data: bytes) -> None:
    journal = _read(data)
    if not isinstance(journal, Journal):
        return
    for outcome_of_episode in (Outcome.CANCELLED, Outcome.ERROR):
        check_record(unfinished_record(journal, outcome_of_episode, ended_at=AT))
    # A crash cuts the file anywhere: the shorter journal has the first of the same steps.
    shorter = _read(data[: max(data.find(b"\n") + 1, len(data) // 2)])
    assert isinstance(shorter, Journal)
    assert journal.steps[: len(shorter.steps)] == shorter.steps
    assert (shorter.header, shorter.damage) == (journal.header, None) or shorter.damage == journal.damage


def _read(data: bytes) -> Journal | Exception:
    PATH.write_bytes(data)
    journal = outcome(lambda: read_journal(PATH), StoreError)
    if isinstance(journal, Journal):
        msgspec.json.encode(journal)
    return journal

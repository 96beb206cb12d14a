"""The token file of an episode: written with it, and wherever its file goes."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.store import EpisodeIndex, EpisodeStore
from runner.store.pruning import archive_episodes, delete_episodes
from runner.store.token_file import HEADER, TOKENS_SUFFIX, TokenizedEpisode, decode_token_file, encode_token_file
from runner.types import Outcome
from runner.types.sequences import MAX_RECORD_BYTES, MAX_TOKEN_ID, TokenSequence, pack_sequences, unpack_sequences
from tests.support.episodes import RecordedEpisode, damaged_bytes, make_step
from tests.support.examples import examples


def sequence(number: int, **fields: object) -> TokenSequence:
    known = {"prompt_ids": [number, 2], "completion_ids": [3, MAX_TOKEN_ID], "logprobs": [-0.25, -1e-9]}
    return msgspec.convert({**known, **fields}, TokenSequence)


def play_steps(store: EpisodeStore, index: EpisodeIndex) -> RecordedEpisode:
    """Play three steps, of which the second has no token ids, and a call without a step."""
    episode = RecordedEpisode(store, index)
    episode.start()
    episode.reset()
    for number in range(3):
        if number != 1:
            episode.reporter.on_sequence(sequence(number, label="discarded"))
            episode.reporter.on_sequence(sequence(number))
        episode.play(make_step(number))
    episode.reporter.on_sequence(sequence(9))
    return episode


def tokens_of(store: EpisodeStore, episode: RecordedEpisode) -> TokenizedEpisode:
    found = store.load_with_tokens(episode.file)
    assert isinstance(found, TokenizedEpisode)
    return found


def check_tokens(found: TokenizedEpisode) -> None:
    first, second, third = found.sequences
    assert (first, second) == ([sequence(0, label="discarded"), sequence(0)], [])
    assert third == [sequence(2, label="discarded"), sequence(2)]
    assert found.unfinished == [sequence(9, label="discarded", cause="its step did not end")]
    assert found.lost == ""


def test_a_finished_episode_has_its_token_ids_beside_it(store: EpisodeStore, index: EpisodeIndex) -> None:
    episode = play_steps(store, index)
    episode.end()
    assert [step.tokens_ref for step in store.load(episode.file).timesteps] == [0, msgspec.UNSET, 1]
    check_tokens(tokens_of(store, episode))
    assert episode.file.with_suffix(TOKENS_SUFFIX).stat().st_mode & 0o777 == 0o600
    assert b"tokens_ref" in episode.file.read_bytes() and b"completion_ids" not in episode.file.read_bytes()


def test_an_episode_without_token_ids_has_no_token_file(store: EpisodeStore, index: EpisodeIndex) -> None:
    episode = RecordedEpisode(store, index)
    episode.record_episode()
    assert not episode.file.with_suffix(TOKENS_SUFFIX).exists()
    assert not isinstance(store.load_with_tokens(episode.file), TokenizedEpisode)


def test_token_ids_of_finished_steps_survive_a_crash(store: EpisodeStore, index: EpisodeIndex) -> None:
    episode = play_steps(store, index)
    with episode.file.with_suffix(TOKENS_SUFFIX).open("ab") as file:
        file.write(b"\0\0\1\0torn")
    episode.writer.close()
    (record,) = store.recover()
    assert record.outcome is Outcome.INTERRUPTED
    found = tokens_of(store, episode)
    assert [len(each) for each in found.sequences] == [2, 0, 2] and found.lost == ""


def test_an_abandoned_episode_keeps_its_token_ids_and_a_restarted_one_does_not(
    store: EpisodeStore, index: EpisodeIndex
) -> None:
    abandoned, restarted = play_steps(store, index), play_steps(store, index)
    abandoned.recorder.abandon(Outcome.TIMEOUT)
    restarted.recorder.discard()
    assert tokens_of(store, abandoned).sequences[2] == [sequence(2, label="discarded"), sequence(2)]
    assert not restarted.file.with_suffix(TOKENS_SUFFIX).exists()


def test_an_episode_that_was_not_recorded_leaves_no_token_file(store: EpisodeStore, index: EpisodeIndex) -> None:
    episode = play_steps(store, index)
    episode.writer.close()
    episode.journal.write_bytes(b"")
    assert store.recover() == []
    assert list(episode.file.parent.iterdir()) == []


def test_a_failed_write_is_made_up_for_at_the_end(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("runner.store.token_file.create_private", fail)
        episode = play_steps(store, index)
    episode.end()
    check_tokens(tokens_of(store, episode))


def test_lost_token_ids_never_cost_an_episode(store: EpisodeStore, index: EpisodeIndex) -> None:
    episode = play_steps(store, index)
    episode.end()
    path = episode.file.with_suffix(TOKENS_SUFFIX)
    path.write_bytes(path.read_bytes()[: len(HEADER) + 6])
    assert tokens_of(store, episode).lost == "2 records are missing"
    path.write_bytes(b"something else")
    assert tokens_of(store, episode).lost == "it is no token file of this version"
    path.unlink()
    found = tokens_of(store, episode)
    assert (found.sequences, found.rounds) == ([[], [], []], 3) and "cannot be read" in found.lost


def test_token_ids_are_archived_restored_and_deleted_with_the_episode(store: EpisodeStore, index: EpisodeIndex) -> None:
    episode = play_steps(store, index)
    episode.end()
    batch_id, ids, path = episode.header.batch_id, [episode.header.episode_id], episode.file.with_suffix(TOKENS_SUFFIX)
    archive_episodes(store, index, batch_id, ids)
    assert not path.exists() and not episode.file.exists()
    check_tokens(tokens_of(store, episode))
    with zipfile.ZipFile(store.archive_path(batch_id)) as opened:
        opened.extractall(store.data_dir)
    store.archive_path(batch_id).unlink()
    check_tokens(tokens_of(store, episode))
    delete_episodes(store, index, batch_id, ids)
    assert not (store.runs / batch_id).exists()


def test_an_archived_episode_without_a_tokenized_step_keeps_the_calls_of_its_unfinished_step(
    store: EpisodeStore, index: EpisodeIndex
) -> None:
    episode = RecordedEpisode(store, index)
    episode.start()
    episode.reset()
    episode.play(make_step(0))
    episode.reporter.on_sequence(sequence(9))
    episode.end()
    before = tokens_of(store, episode)
    archive_episodes(store, index, episode.header.batch_id, [episode.header.episode_id])
    assert not episode.file.exists()
    found = tokens_of(store, episode)
    assert found.unfinished == before.unfinished != []
    assert found.sequences == [[]]


def test_sequences_beyond_a_bound_are_kept_without_their_ids() -> None:
    long = sequence(1, label="discarded", prompt_ids=list(range(1 << 16)), problems=("no_logprobs",))
    (kept,) = unpack_sequences(pack_sequences([long], max_bytes=1000))
    assert (kept.label, kept.prompt_ids, kept.completion_ids, kept.logprobs) == ("discarded", [], [], [])
    assert (kept.problems, kept.is_trained) == (("no_logprobs", "too_long"), False)


def test_a_record_that_unpacks_to_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        unpack_sequences(zlib.compress(b"\0" * (MAX_RECORD_BYTES + 1), 1))


SEQUENCES = st.lists(st.lists(st.builds(sequence, st.integers(0, MAX_TOKEN_ID)), max_size=3), max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(records=SEQUENCES, data=st.data())
def test_any_bytes_are_read_or_refused(records: list[list[TokenSequence]], data: st.DataObject) -> None:
    content = encode_token_file(map(pack_sequences, records))
    assert decode_token_file(content) == records
    damaged = data.draw(damaged_bytes(content))
    try:
        found = decode_token_file(damaged)
    except ValueError:
        return
    assert all(0 <= each <= MAX_TOKEN_ID for record in found for part in record for each in part.prompt_ids)

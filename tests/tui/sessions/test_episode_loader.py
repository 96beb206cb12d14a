from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentgym_tui.presenters.episode_facts import spans_text
from agentgym_tui.presenters.transcript import failure_blocks, missing_file_text, transcript_text
from agentgym_tui.sessions.session import EpisodeLoadError, load_episode, select_episodes
from agentgym_tui.state.episode_list import UnreadableFile
from runner.client.node_client import ControlRequestError
from runner.types import Outcome
from tests.support.console.fake_session import bus_session, busy_session, files_session
from tests.support.console.samples import HOSTILE, ended, episode_id, hostile_episode, live, row, span
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory

RUNNING = episode_id(3)


async def test_a_running_episode_comes_from_the_store_and_a_stored_one_from_its_file() -> None:
    session = busy_session()
    session.store.currency = "EUR"
    loaded = await load_episode(session, None, RUNNING)
    assert loaded.episode is session.store.episodes[RUNNING]
    assert loaded.episode.currency == "EUR"
    assert loaded.data is None
    assert not loaded.missing_reason
    assert not session.fake_library.loaded
    loaded = await load_episode(session, row(1), episode_id(1))
    assert (loaded.episode.episode_id, loaded.episode.currency) == (episode_id(1), "EUR")
    assert loaded.data is not None and session.fake_library.loaded == [episode_id(1)]


async def test_an_episode_with_a_damaged_file_is_shown_from_the_store() -> None:
    session = busy_session()
    session.store.apply_events([live(ended(3, 4))])
    session.fake_library.damaged[RUNNING] = "it is damaged"
    loaded = await load_episode(session, None, RUNNING)
    assert loaded.episode is session.store.episodes[RUNNING]
    assert (loaded.data, loaded.missing_reason) == (None, "it is damaged")


async def test_an_unreadable_episode_is_an_error_with_its_cause() -> None:
    session = files_session(1)
    session.fake_library.damaged[episode_id(0)] = "it is damaged"
    with pytest.raises(EpisodeLoadError, match="it is damaged"):
        await load_episode(session, row(0), episode_id(0))
    with pytest.raises(EpisodeLoadError, match=r"/x\nno JSON"):
        await load_episode(session, UnreadableFile(Path("/x"), "no JSON"), "/x")


@pytest.mark.parametrize(("query", "n_shown"), [("task:1", 1), ("task:", 0), ("note:key", 2)])
async def test_the_episodes_of_a_query_are_selected_or_only_the_named_one(query: str, n_shown: int) -> None:
    session = files_session()
    session.fake_library.noted = {episode_id(0): "a key", episode_id(2): "a key"}
    assert len((await select_episodes(session, query, episode_id(1))).shown) == n_shown


async def test_a_watched_episode_is_fetched_from_its_node() -> None:
    session = bus_session()
    header = episode_header(episode_id=episode_id(50), env="Maze")
    trajectory = make_trajectory(header, [make_step(0)], outcome=Outcome.FAILURE, success=False)
    record = finished_record(header, trajectory)
    session.fake_control.files[episode_id(50)] = data = msgspec.json.encode(record)
    loaded = await load_episode(session, None, episode_id(50))
    assert (loaded.episode.env, loaded.episode.outcome, len(loaded.episode.steps)) == ("Maze", "failure", 1)
    assert loaded.data == data


async def test_a_rejected_or_invalid_fetch_is_an_error_with_its_cause() -> None:
    session = bus_session()
    with pytest.raises(EpisodeLoadError, match="episode"):
        await load_episode(session, None, episode_id(70))
    session.fake_control.files[episode_id(71)] = b"[]"
    with pytest.raises(EpisodeLoadError, match="Expected `object`"):
        await load_episode(session, None, episode_id(71))
    session.fake_control.refusal = ControlRequestError("no answer", "press N")
    with pytest.raises(EpisodeLoadError, match="no answer\npress N"):
        await load_episode(session, None, episode_id(72))
    session.control = None
    with pytest.raises(EpisodeLoadError, match="no node is connected"):
        await load_episode(session, None, episode_id(73))


def test_a_copied_transcript_has_headings_and_raw_text() -> None:
    [failure] = failure_blocks("no\nfile \x1b")
    assert transcript_text([failure, failure._replace(raw="")]).split("\n\n") == [
        f"■ {failure.title}\nno\nfile \x1b",
        f"■ {failure.title}",
    ]
    assert failure_blocks("") == []


def test_a_trace_is_copied_as_a_tree_or_as_raw_json() -> None:
    spans = [span(1, end=4_000_000, name="episode"), span(2, parent=1, end=2_000_000)]
    assert spans_text(spans, raw=False) == "episode  4.0 ms\n  step  2.0 ms"
    assert msgspec.json.decode(spans_text(spans, raw=True), type=list[dict[str, object]])[1]["parent"] == 1
    assert HOSTILE[:3] not in spans_text(hostile_episode().spans.all, raw=False)
    assert spans_text(hostile_episode().spans.all, raw=True)


def test_a_missing_file_is_explained_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_PASSWORD", "hunter22")
    assert "when it ends" in missing_file_text("")
    assert "hunter22" not in missing_file_text("nats: hunter22") + failure_blocks("nats: hunter22")[0].raw

"""What is known of an episode, and what is not, survives an export and an import in every format."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.formats.export import Manifest, export_episodes
from runner.formats.format import find_format
from runner.formats.selection import Filters, select_candidates
from runner.results.summary import summarize_results
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.store.episode_file import Origin
from runner.types import IMPORTED, Outcome, Tokens, join_models
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.examples import IS_FULL
from tests.unit.formats.conftest import NOW, chat_of, imported, stored

WITH_TOKENS = ("atif", "verifiers", *["parquet"] * bool(find_spec("pyarrow")))
FORMATS = (*WITH_TOKENS, "agenttraj", "agentgym-rl", "messages", "sharegpt", "preferences")
RESULT = ("outcome", "success", "unscored", "reward")
KINDS = (*Outcome, "unrated", "unknown")


@st.composite
def episodes(draw: st.DrawFn) -> EpisodeRecord:
    """Return an episode of any outcome, or unrated, or of a file without outcome and reward; it may have no steps."""
    kind = draw(st.sampled_from(KINDS))
    env, rewards = draw(st.sampled_from([("Maze", (-1.0, 0.0, 1.0)), ("SciWorld", (0.0, 43.0, 100.0))]))
    outcome = kind if isinstance(kind, Outcome) else Outcome.FAILURE if kind == "unrated" else Outcome.INTERRUPTED
    steps = [
        make_step(
            number,
            chats=chat_of({"role": "assistant", "content": f"move {number}"}),
            reward=0.0 if kind == "unknown" else draw(st.sampled_from(rewards)),
            tokens=draw(st.sampled_from([None, Tokens(90, 8, 2, 40)])),
            endpoint="local",
            model="m",
        )
        for number in range(draw(st.integers(0, 2)))
    ]
    header = episode_header(env=env, agent="react", model="m", task_index=draw(st.integers(0, 2)))
    played = make_trajectory(header, steps, outcome=outcome, success=outcome is Outcome.SUCCESS)
    record = finished_record(header, played)
    if kind in ("unrated", "unknown"):
        record.evaluation = {"rated": False}
    if kind == "unknown":
        origin = Origin(format="chats", missing=("outcome", "reward"))
        return msgspec.structs.replace(
            record, transport=IMPORTED, reward=None, tokens=Tokens(7, 5, 3, 1), origin=origin
        )
    return record


def results(episodes: Sequence[EpisodeRecord], names: Sequence[str] = RESULT) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in names} for each in episodes]


def exported(records: Sequence[EpisodeRecord], form: str, folder: Path) -> tuple[Manifest, list[Any]]:
    """Store episodes, and export them; return the manifest and the rows of their results."""
    store, target = EpisodeStore(folder / "state"), find_format(form)
    with closing(open_index(store)) as index:
        for record in records:
            store.create_batch_folder(record.batch_id)
            store.save(record)
            index.insert_settled(record)
        candidates, left_out = select_candidates(index, "TRUE", {}, Filters(), by_task=target.by_task)
        path = folder / f"export{target.suffix}"
        manifest = export_episodes(store, candidates, left_out, target, path, query="", filters=[], now=NOW)
        rows = [(row.env, row.n, row.n_rated, row.n_success, row.score) for row in summarize_results(index)]
    return manifest, rows


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=100 if IS_FULL else 5)
@given(drawn=st.lists(episodes(), min_size=1, max_size=4))
def test_what_is_known_of_an_episode_survives_a_round_trip(form: str, drawn: list[EpisodeRecord]) -> None:
    with TemporaryDirectory() as first, TemporaryDirectory() as second, TemporaryDirectory() as third:
        manifest, rows = exported(drawn, form, Path(first))
        assert manifest.n_written + sum(manifest.left_out.values()) == len(drawn)
        store = EpisodeStore(Path(second) / "state")
        with closing(open_index(store)) as index:
            report = imported(store, index, Path(first) / f"export{find_format(form).suffix}")
            again = stored(store, index)
        assert (report.n_malformed, report.n_unrecognised) == (0, not manifest.n_written)  # a file without episodes
        assert len(again) == manifest.n_written
        check(form, drawn, again)
        if not manifest.left_out and form not in ("agentgym-rl", "preferences"):
            assert exported(again, form, Path(third))[1] == rows


def again_from(form: str, original: EpisodeRecord, folder: Path) -> EpisodeRecord:
    """Return an episode as it is imported from its export."""
    exported([original], form, folder)
    store = EpisodeStore(folder / "again")
    with closing(open_index(store)) as index:
        imported(store, index, folder / f"export{find_format(form).suffix}")
        (again,) = stored(store, index)
    return again


@pytest.mark.parametrize("form", WITH_TOKENS)
def test_an_own_export_keeps_texts_calls_rewards_times_and_tokens(
    form: str, episode: EpisodeRecord, tmp_path: Path
) -> None:
    again = again_from(form, episode, tmp_path)
    names = ["env", "agent", "model", "task_index", "attempt", "outcome", "success", "reward", "tokens", "started_at"]
    names += ["ended_at", "duration_s", "rounds"]
    parts = ["action", "reward", "valid", "tokens", "observation"]
    if form == "atif":
        names += ["reset_observation", "versions", "cost", "evaluation", "data_label"]
        parts += ["done", "env_s", "endpoint", "model"]
    assert results([again], names) == results([episode], names)
    for step, own in zip(again.timesteps, episode.timesteps, strict=True):
        assert [getattr(step, part) for part in parts] == [getattr(own, part) for part in parts]
        assert step.model_s == pytest.approx(own.model_s)
        assert step.chats[0][-1] == own.chats[0][-1]
    assert again.origin is not None and again.origin.missing == ()


@pytest.mark.parametrize("form", [*WITH_TOKENS, "messages", "sharegpt"])
@pytest.mark.parametrize("models", [("n", "n"), ("m", "n"), ("m", "k + n"), ("n", None)])
def test_a_file_names_the_models_that_answered(form: str, models: tuple[str | None, ...], tmp_path: Path) -> None:
    chats = chat_of({"role": "assistant", "content": "move"})
    steps = [
        make_step(number, chats=chats, endpoint=f"of {model}" if model else None, model=model)
        for number, model in enumerate(models)
    ]
    header = episode_header(agent="react", model="m")
    record = finished_record(header, make_trajectory(header, steps))
    exported([record], form, tmp_path)
    store = EpisodeStore(tmp_path / "again")
    with closing(open_index(store)) as index:
        imported(store, index, tmp_path / f"export{find_format(form).suffix}")
        (again,), (row,) = stored(store, index), summarize_results(index)
    assert (again.model, again.models, row.model) == ("m", record.models, join_models("m", record.models))


def check(form: str, drawn: list[EpisodeRecord], again: list[EpisodeRecord]) -> None:
    """Compare episodes with what was read of their export."""
    by_id = {each.episode_id: each for each in drawn}
    for each in again:
        assert each.origin is not None
        if form == "preferences":  # pairs have no outcome
            assert each.unscored
            assert each.reward == by_id[each.origin.id].reward
            continue
        if form in ("agenttraj", "agentgym-rl"):  # without ids of episodes
            texts = [step.action.text for step in each.timesteps]
            same = [one for one in drawn if one.task_index == each.task_index and len(one.timesteps) == len(texts)]
            names = ("outcome", "success", "unscored") if form == "agentgym-rl" else RESULT
            assert results([each], names)[0] in results(same, names)
            assert (each.reward is None) in [one.reward is None for one in same]
            continue
        original = by_id[each.origin.id]
        assert results([each]) == results([original])
        assert (each.env, each.task_index, each.attempt) == (original.env, original.task_index, original.attempt)
        if form in WITH_TOKENS:
            assert each.tokens == original.tokens

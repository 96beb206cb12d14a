"""Pictures of the environment in an episode: taken after the reset and each step, bounded, and never fatal."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.episode.factory import EpisodeFactory
from runner.episode.world import pack_cells
from runner.errors import EnvironmentFault
from runner.tracing import SpanList
from runner.types import CellRun, Cells, EpisodeEvent, Outcome, TimestepPlayed, Trajectory, unpack_cells
from runner.types.cells import MAX_CELLS_BYTES, MAX_COLUMNS, MAX_ROWS
from runner.util.clock import Clock
from runner.util.display_text import is_unsafe
from tests.support.fakes import Counter, UpAgent
from tests.support.json_values import JSON_VALUES
from tests.support.manual_clock import ManualClock
from tests.support.runners import make_context


class Drawn(Counter):
    def render_cells(self) -> Cells | None:
        return Cells([(CellRun(f"at {self.count}", "green"),)])


class AsyncDrawn(Counter):
    async def render_cells(self) -> Cells | None:
        await asyncio.sleep(0)
        return Cells([(CellRun(f"at {self.count}", "green"),)])


class Undrawn(Counter):
    def render_cells(self) -> Cells | None:
        return None


class Broken(Drawn):
    def render_cells(self) -> Cells | None:
        if self.count == 1:
            raise SystemExit("no paint left")
        return super().render_cells()


class Remote(Counter):
    async def render_cells(self) -> Cells | None:
        return None


class Twin(UpAgent):
    def render_cells(self) -> Cells | None:
        return Cells([(CellRun("a copy"),)])


class Foreign(Counter):
    def render_cells(self) -> Any:  # noqa: ANN401 - breaks the protocol
        return [["not", "cells"]]


class Slow(Drawn):
    clock = ManualClock()

    def render_cells(self) -> Cells | None:
        self.clock.now += 5.0
        return super().render_cells()


class Stuck(Counter):
    is_drawing = asyncio.Event()

    async def render_cells(self) -> Cells | None:
        if self.count:
            self.is_drawing.set()
            await asyncio.sleep(60)
        return None


async def play(
    env: str,
    events: list[EpisodeEvent] | None = None,
    *,
    records_world: bool = True,
    agent: str = "tests.support.fakes.UpAgent",
) -> Trajectory:
    runner = EpisodeFactory(
        env_cfg={"_target_": f"{__name__}.{env}"}, agent_cfg={"_target_": agent}, records_world=records_world
    )
    return await runner.play_episode(context=make_context(events))


@pytest.mark.parametrize("env", ["Drawn", "AsyncDrawn"])
async def test_the_reset_and_each_step_have_a_picture(env: str) -> None:
    events: list[EpisodeEvent] = []
    trajectory = await play(env, events)
    assert trajectory.reset_world == [[["at 0", "green"]]]
    assert [step.world for step in trajectory.timesteps] == [[[[f"at {n}", "green"]]] for n in (1, 2, 3)]
    resets = [event.reset_world for event in events if isinstance(event, TimestepPlayed)]
    assert resets == [[[["at 0", "green"]]], None, None]


@pytest.mark.parametrize(("env", "records_world"), [("Counter", True), ("Undrawn", True), ("Drawn", False)])
async def test_there_may_be_no_pictures(env: str, records_world: bool) -> None:
    trajectory = await play(env, records_world=records_world)
    assert trajectory.outcome is Outcome.SUCCESS
    assert trajectory.reset_world is None
    assert [step.world for step in trajectory.timesteps] == [None] * 3


@pytest.mark.parametrize(("env", "first"), [("Counter", "a copy"), ("Remote", "a copy"), ("Drawn", "at 0")])
async def test_the_agent_draws_its_copy_only_where_the_environment_draws_nothing(env: str, first: str) -> None:
    trajectory = await play(env, agent=f"{__name__}.Twin")
    pictures = [unpack_cells(each) for each in (trajectory.reset_world, *(step.world for step in trajectory.timesteps))]
    assert [cells and cells.text.startswith(first[:2]) for cells in pictures] == [True] * 4
    assert pictures[0] is not None
    assert pictures[0].text == first


@pytest.mark.parametrize(("env", "reason"), [("Broken", "no paint left"), ("Foreign", "should return Cells or None")])
async def test_a_failure_costs_the_pictures_and_not_the_episode(
    env: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trajectory = await play(env)
    assert trajectory.outcome is Outcome.SUCCESS
    assert [step.world for step in trajectory.timesteps] == [None] * 3
    assert len(caplog.messages) == 1
    assert reason in caplog.text


async def test_the_time_of_a_picture_counts_as_that_of_the_environment_and_has_a_span() -> None:
    spans = SpanList()
    runner = EpisodeFactory(
        env_cfg={"_target_": f"{__name__}.Slow"},
        agent_cfg={"_target_": "tests.support.fakes.UpAgent"},
        records_world=True,
    )
    context = make_context(spans=spans, clock=Clock(monotonic=Slow.clock))
    trajectory = await runner.play_episode(context=context)
    assert [step.phases and step.phases.env for step in trajectory.timesteps] == [5.0] * 3
    assert [span.name for span in spans.spans].count("render_cells") == 3


async def test_a_step_whose_picture_is_cancelled_is_still_emitted() -> None:
    events: list[EpisodeEvent] = []
    task = asyncio.ensure_future(play("Stuck", events))
    await asyncio.wait_for(Stuck.is_drawing.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.step.index for event in events if isinstance(event, TimestepPlayed)] == [0]


def test_texts_are_made_safe_and_cut() -> None:
    packed = pack_cells(Cells([(CellRun("\x1b[2J\n\u202e"), CellRun("x" * 500, "red", "solid"))]))
    assert packed[0][0] == "␛[2J␊\\u{202e}"
    assert packed[0][1] == ["x" * (MAX_COLUMNS - 13), "red", "solid"]


@pytest.mark.parametrize(
    "run", [("a", "pink", ""), ("a", "red", "striped"), (7, "red", ""), ("a", ["red"], ""), ("a",), "abc", None]
)
def test_a_run_that_breaks_the_contract_is_refused(run: Any) -> None:  # noqa: ANN401
    with pytest.raises(EnvironmentFault, match="render_cells should return"):
        pack_cells(Cells([(run,)]))


def test_a_picture_that_is_too_large_is_cut_and_marked() -> None:
    tall = pack_cells(Cells([(CellRun(str(number)),) for number in range(1000)]))
    assert len(tall) == MAX_ROWS
    assert tall[-2:] == [["58"], [["…", "dim"]]]
    heavy = pack_cells(Cells([tuple(CellRun("é", "purple", "shade") for _ in range(150)) for _ in range(50)]))
    assert len(msgspec.json.encode(heavy)) <= MAX_CELLS_BYTES
    assert heavy[-1] == [["…", "dim"]]


@given(rows=st.lists(st.lists(st.text(max_size=300), max_size=8), max_size=80))
def test_every_picture_is_bounded_and_safe(rows: list[list[str]]) -> None:
    packed = pack_cells(Cells([tuple(CellRun(text, "cyan") for text in row) for row in rows]))
    assert len(packed) <= MAX_ROWS
    assert len(msgspec.json.encode(packed)) <= MAX_CELLS_BYTES
    for row in packed:
        assert sum(len(text) for text, *_ in row) <= MAX_COLUMNS
        assert not any(is_unsafe(text) for text, *_ in row)


@given(value=JSON_VALUES)
def test_any_json_reads_as_a_bounded_picture_or_none(value: object) -> None:
    cells = unpack_cells(value)
    assert (cells is None) == (not isinstance(value, list) or not value)
    if cells is not None:
        assert len(cells.rows) <= MAX_ROWS


def test_a_packed_picture_reads_as_it_was() -> None:
    cells = Cells([(CellRun("a"), CellRun("b", "red"), CellRun("c", "dim", "shade")), (), (CellRun(""),)])
    assert unpack_cells(pack_cells(cells)) == cells

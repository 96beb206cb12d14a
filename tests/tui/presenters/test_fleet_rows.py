"""Rows of the Fleet screen: what each node plays, its health, when it was last seen, and what is wrong with it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.fleet import FleetRow, fleet_heading, fleet_listing, fleet_rows, node_detail
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.nodes import MAX_CHECKED
from agentgym_tui.state.query import Sorting
from agentgym_tui.state.run_store import RunStore
from runner.events.live import LiveItem
from runner.types.machine import GpuState
from tests.support.console.line_views import line_text
from tests.support.console.samples import (
    HOSTILE,
    NEXT_BOOT,
    NODE,
    START,
    FakeClock,
    durable,
    env_health,
    field_status,
    fleet_store,
    heartbeat,
    live,
    machine,
    model_health,
    node_health,
    progress,
)

COLUMNS = [column.title for column in fleet_listing().columns]


def rows_of(store: RunStore) -> dict[str, FleetRow]:
    return {row.node.name: row for row in fleet_rows(store)}


def shown(row: FleetRow) -> dict[str, str]:
    """Return the texts of a row by the titles of their columns."""
    return dict(zip(COLUMNS, (cell.text for cell in fleet_listing().line(row)), strict=True))


def heading(store: RunStore, query: str = "") -> str:
    rows = fleet_listing().rows()
    rows.set_rows(fleet_rows(store))
    rows.search(query)
    return line_text(fleet_heading(rows, "esc", 200))


def detail(row: FleetRow) -> list[str]:
    return [line_text(line) for line in node_detail(row, 300)]


def test_a_row_has_what_a_node_is_plays_and_uses() -> None:
    assert shown(rows_of(fleet_store())["gpu-1"]) == {
        "node": "gpu-1",
        "state": "▶ running",
        "runs": "▶ 3/10 Wordle",
        "waits": "2",
        "envs": "1/3",
        "models": "0/1",
        "GPU": "2 · 85%",
        "seen": "now",
        "version": "0.1.0",
        "profile": "lab",
    }


def test_lost_nodes_come_first_and_the_others_by_name() -> None:
    assert [*rows_of(fleet_store())] == ["gpu-2", "a-node-with-a-long-name", "gpu-1", "gpu-3", "older"]


def test_an_older_node_whose_heartbeats_name_nothing_is_up_and_the_rest_unknown() -> None:
    row = shown(rows_of(fleet_store())["older"])
    assert (row["state"], row["version"], row["profile"], row["waits"]) == ("● up", UNKNOWN, UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(("silent_s", "state"), [(4.9, "● idle"), (5.1, "✗ lost")])
def test_a_node_is_lost_five_seconds_after_its_last_heartbeat(silent_s: float, state: str) -> None:
    clock = FakeClock()
    store = RunStore(now=clock)
    store.apply_events([live(heartbeat(status="idle"))])
    clock.at += silent_s
    store.tick()
    assert shown(rows_of(store)[NODE])["state"] == state


def test_a_lost_node_shows_when_it_was_last_seen_and_nothing_that_is_no_longer_known(utc: None) -> None:
    store = fleet_store()
    row = rows_of(store)["gpu-2"]
    unknown = {"envs": UNKNOWN, "models": UNKNOWN, "GPU": UNKNOWN}
    assert shown(row) == shown(row) | unknown | {"state": "✗ lost", "seen": "03-04 05:06", "runs": f"▶ 3/10 {UNKNOWN}"}
    assert detail(row)[1] == "✗ silent since 03-04 05:06:07; its batches stay with it, and may go on"


def test_a_narrow_column_has_the_time_without_the_date(utc: None) -> None:
    lost = rows_of(fleet_store())["gpu-2"]
    assert fleet_listing().line(lost)[COLUMNS.index("seen")].fitted(8) == "05:06:07"


def test_a_node_without_heartbeats_was_last_seen_at_its_status_event(utc: None) -> None:
    assert shown(rows_of(fleet_store())["gpu-3"])["seen"] == "03-04 05:06"


def test_paused_batches_and_several_batches_are_summed_up() -> None:
    store = fleet_store()
    store.apply_events([live(progress(0, seq=1, paused=2), node="gpu-1")])
    assert shown(rows_of(store)["gpu-1"])["runs"] == "‖ 3/10 Wordle"
    store.apply_events([live(progress(1), node="gpu-1")])
    assert shown(rows_of(store)["gpu-1"])["runs"] == "▶ 6/20 2 batches"


def test_a_lost_gpu_is_a_problem() -> None:
    store = fleet_store()
    gpus = [GpuState(index=0, util=50.0), GpuState(index=1, lost="Xid 79")]
    store.apply_events([live(replace(machine(), at=START + timedelta(seconds=2), gpu=gpus), node="gpu-1")])
    row = rows_of(store)["gpu-1"]
    assert shown(row)["GPU"] == "✗ 1 lost" and "✗ GPU 1 is lost" in detail(row)[1]


def test_problems_name_their_cause_and_an_environment_that_is_not_installed_is_none() -> None:
    rows = rows_of(fleet_store())
    causes = [problem.text for problem in rows["gpu-1"].problems]
    assert causes == ["✗ WebShop down: refused", "✗ tensorzero down: refused"]
    assert [problem.text for problem in rows["a-node-with-a-long-name"].problems] == ["✗ the disk is full"]
    assert shown(rows["a-node-with-a-long-name"])["state"] == "✗ storage"
    assert detail(rows["older"])[1] == "● nothing is wrong"


def test_what_is_slow_or_rests_is_a_warning_below_what_fails() -> None:
    store = RunStore(now=FakeClock())
    items: list[LiveItem] = [
        env_health("Maze", "slow", transport="http"),
        model_health(status="up", cause="503", rest_s=9.0),
    ]
    store.apply_events([live(heartbeat(), *items, env_health("SQLGym", "wrong", transport="http"))])
    row = rows_of(store)[NODE]
    assert [problem.text[0] for problem in row.problems] == ["✗", "!", "!"]
    assert (shown(row)["envs"], shown(row)["models"]) == ("1/2", "1/1")


def test_the_health_of_each_node_is_its_own_and_ends_with_its_process() -> None:
    store = RunStore(now=FakeClock())
    store.apply_events([live(env_health("Maze", "up")), live(env_health("Maze", "down", transport="http"), node="b")])
    assert [shown(row)["envs"] for row in fleet_rows(store)] == ["0/1", "1/1"]
    store.apply_events([live(heartbeat(), node="b", boot=NEXT_BOOT)])
    assert [shown(row)["envs"] for row in fleet_rows(store)] == [UNKNOWN, "1/1"]


def test_a_node_with_very_many_environments_takes_a_bounded_part_of_the_memory() -> None:
    store = RunStore(now=FakeClock())
    store.apply_events([live(*(env_health(f"e{n}") for n in range(MAX_CHECKED + 9)))])
    assert shown(rows_of(store)[NODE])["envs"] == f"{MAX_CHECKED}/{MAX_CHECKED}"


def test_the_heading_counts_nodes_losses_problems_and_batches() -> None:
    store = fleet_store()
    assert heading(store) == "Fleet · 5 nodes · 1 lost · 2 with problems · 1 batch running · 2 waiting"
    assert "2 match status:lost,stopped (esc clears)" in heading(store, "status:lost,stopped")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status:lost", ["gpu-2"]),
        ("profile:lab problems>0", ["a-node-with-a-long-name", "gpu-1"]),
        ("waits>0 gpu>80", ["gpu-1"]),
        ("version:none", ["gpu-3", "older"]),
        ("long", ["a-node-with-a-long-name"]),
    ],
)
def test_nodes_are_found_by_words_and_fields(query: str, found: list[str]) -> None:
    rows = fleet_listing().rows()
    rows.set_rows(fleet_rows(fleet_store()))
    assert rows.search(query) is None
    assert sorted(row.node.name for row in rows.shown if not row.node.lost or "lost" in query) == found


def test_nodes_are_sorted_by_the_time_at_which_they_were_seen() -> None:
    store = RunStore(now=FakeClock())
    for n, name in enumerate("bca"):
        store.apply_events([live(heartbeat(at=START + timedelta(seconds=n)), node=name)])
    rows = fleet_listing().rows()
    rows.set_rows(fleet_rows(store))
    rows.sort(Sorting("seen", descending=True))
    assert [row.node.name for row in rows.shown] == ["a", "c", "b"]


def test_a_late_heartbeat_does_not_start_a_stopped_node_again() -> None:
    store = RunStore(now=FakeClock())
    store.apply_events([durable(field_status("stopped")), live(heartbeat(status="idle"))])
    assert shown(rows_of(store)[NODE])["state"] == "○ stopped"
    store.apply_events([live(heartbeat(status="idle"), boot=NEXT_BOOT)])
    assert shown(rows_of(store)[NODE])["state"] == "● idle"


def test_the_reply_of_a_node_has_its_version() -> None:
    store = RunStore(now=FakeClock())
    store.apply_health(node_health())
    assert shown(rows_of(store)[NODE])["version"] == "0.3.0"


def test_hostile_texts_of_nodes_become_safe_cells() -> None:
    store, clock = RunStore(now=FakeClock()), FakeClock()
    about = {"profile": HOSTILE, "version": HOSTILE, "status": HOSTILE}
    health: list[LiveItem] = [env_health(HOSTILE, HOSTILE, cause=HOSTILE), model_health(HOSTILE, HOSTILE, HOSTILE)]
    gpus = replace(machine(), gpu=[GpuState(index=0, name=HOSTILE)])
    store.apply_events([live(heartbeat(HOSTILE, HOSTILE, **about), *health, gpus, node=HOSTILE)])
    clock.at += 9
    (row,) = fleet_rows(store)
    lines: list[Line] = [fleet_listing().line(row), *node_detail(row, 500), row.problems]
    assert len(row.problems) == 3 and "␛" in line_text(lines[0])
    assert not any(has_unsafe_chars(cell.text) for line in lines for cell in line)

"""The lines that presenters make of a store, and the bounds of what a store keeps."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from rich.cells import cell_len

from agentgym_tui.commands import Keymap
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.episode_facts import StepRows, failover_text
from agentgym_tui.presenters.live import EnvironmentRows, reward_lines, transcript_title, welcome_lines
from agentgym_tui.presenters.machine import MachineRows, MachineView, machine_heading, machine_summary
from agentgym_tui.presenters.status_line import episode_line, progress_line, status_line, status_lines
from agentgym_tui.presenters.transcript import step_blocks
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import MAX_NOTICES, RunStore
from agentgym_tui.state.servers import MAX_ENDPOINTS, MAX_ENVS, N_POINTS

MAX_EPISODES = 3
MAX_BYTES = 200_000
WIDTHS = (0, 1, 20, 80, 200)


def check_bounds(store: RunStore) -> None:
    assert len(store.episodes) <= MAX_EPISODES
    assert sum(each.size for each in store.episodes.values()) <= MAX_BYTES
    assert len(store.envs) <= MAX_ENVS + 1
    assert len(store.endpoints) <= MAX_ENDPOINTS
    assert len(store.notices) <= MAX_NOTICES
    assert all(len(points) <= N_POINTS for points in store.rewards.values())
    assert all(key == each.episode_id for key, each in store.episodes.items())
    started = [each.started_at for each in store.episodes.values()]
    assert started == sorted(started)
    assert [each for each in store.episodes.values() if each.running] == store.running_episodes()
    for each in store.episodes.values():
        assert [step.index for step in each.steps] == sorted({step.index for step in each.steps})


def all_lines(store: RunStore, widths: Iterable[int] = WIDTHS) -> Iterable[Line]:
    for width in widths:
        bounded = [
            status_line(store, "title \x1b[2J\n", width),
            progress_line(store.batch_registry.active(), width, now=0.0),
            *(progress_line(batch, width, now=0.0, spent=store.usage_of(batch)) for batch in store.batches.values()),
            *(episode_line(store, each, width) for each in [None, *store.episodes.values()]),
            *status_lines(store, "title \x1b[2J\n", width, max_cause_lines=3),
            machine_summary(MachineView(store, Keymap().key), width),
            machine_heading(MachineRows(MachineView(store, Keymap().key), width).sections, width),
            *(welcome_lines(store, width, Keymap().key) if width >= 80 else ()),
            *(transcript_title(each, 0, "", width) for each in store.episodes.values()),
            *(shown for points in store.rewards.values() for shown in reward_lines(list(points), width, 6)),
        ]
        for shown in bounded:
            assert sum(cell_len(cell.text) for cell in shown) <= width
        yield from bounded
    machine = MachineRows(MachineView(store, Keymap().key), 80)
    assert len({machine.key(index) for index in range(len(machine))}) == len(machine)
    yield from (machine.line(index, 80) for index in range(len(machine)))
    environments = EnvironmentRows(store)
    yield from (environments.line(index, 80) for index in range(len(environments)))
    for each in store.episodes.values():
        steps = StepRows(each)
        assert len({steps.key(index) for index in range(len(steps))}) == len(steps)
        yield from (steps.line(index, 80) for index in range(len(steps)))
        streaming_step = each.streaming.step if each.streaming is not None else 0
        yield from ([Cell(text) for text in (block.title, *block.lines)] for block in step_blocks(each, streaming_step))
    yield [Cell(failover_text(failover)) for failover in store.failovers]


def episode_fields(store: RunStore) -> list[dict[str, Any]]:
    """Return all fields of all episodes but their versions; of the spans only the number, as some cannot be decoded."""
    episodes = sorted(store.episodes.values(), key=attrgetter("episode_id"))  # some started at the same time
    names = [name for name in Episode.__struct_fields__ if name != "version"]  # depends on how items are batched
    fields = [{name: getattr(each, name) for name in names} for each in episodes]
    return [{**each, "spans": len(each["spans"])} for each in fields]

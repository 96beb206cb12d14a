"""An episode file as the console shows it: steps, transcript, evaluation, spans, JSON, and the texts that it copies."""

from __future__ import annotations

import json

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.episode_facts import SpanRows, StepRows, spans_text, world_at, world_lines
from agentgym_tui.presenters.payload import TextRows, pretty_json
from agentgym_tui.presenters.transcript import Block, evaluation_blocks, step_blocks, transcript_text
from agentgym_tui.sessions.episode_files import episode_from_bytes
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from runner.errors import StoreError
from tests.fuzz.oracles import check_displayable, outcome
from tests.fuzz.targets.episode_file import PATH
from tests.fuzz.targets.episode_file import TOKENS as FILE_TOKENS
from tests.support.console.store_lines import all_lines

TOKENS = (
    *FILE_TOKENS,
    b'{"id":1,"parent":1,"name":"n","category":"c","track":"t","start_ns":0,"end_ns":1,"attributes":{}}',
    b'"full_length":{"text":9}',
    b'"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]',
    b'"reasoning_content":"r"',
    b'"world":[["a",["b","red"],["c","green","solid"]]]',
    b'"reset_world":[["a"]]',
    b'"evaluation":{"success":true,"judge":"scenario","events":[{"app":"a","time":1}]}',
)
SHARE = 2
MAX_STEPS = 4
MAX_ROWS = 60


def check(data: bytes) -> None:
    _check_json(data)
    episode = outcome(lambda: episode_from_bytes(data, PATH), StoreError)
    if not isinstance(episode, Episode):
        return
    steps = StepRows(episode)
    _check_lines([steps.line(index, 80) for index in range(min(len(steps), MAX_ROWS))])
    for index in range(min(len(steps), MAX_STEPS)):
        for full in (False, True):
            _check_blocks(step_blocks(episode, index, full=full))
        _check_lines(world_lines(world_at(episode, index)))
        _check_lines(world_lines(world_at(episode, index, before=True)))
    _check_blocks(evaluation_blocks(episode.evaluation))
    _check_spans(episode)
    store = RunStore(now=lambda: 1.0)
    store.merge_episode(episode)
    _check_lines(list(all_lines(store, (80,))))


def _check_json(data: bytes) -> None:
    text = pretty_json(data)
    rows = TextRows(text)
    _check_lines([rows.line(index, 80) for index in range(min(len(rows), MAX_ROWS))])
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError):
        return
    assert json.dumps(json.loads(text)) == json.dumps(value)


def _check_blocks(blocks: list[Block]) -> None:
    for block in blocks:
        for text in (block.title, *block.lines):
            check_displayable(text)
    assert isinstance(transcript_text(blocks), str)


def _check_spans(episode: Episode) -> None:
    rows = SpanRows(episode.spans.all)
    assert len({rows.key(index) for index in range(len(rows))}) == len(rows) == len(episode.spans)
    for index in range(min(len(rows), MAX_ROWS)):
        _check_lines([rows.line(index, 80), [rows.bar(index, 20)]])
        assert len(rows.bar(index, 20).text) <= 20
    check_displayable(rows.axis(40))
    assert json.loads(spans_text(episode.spans.all, raw=True)) is not None
    spans_text(episode.spans.all, raw=False)


def _check_lines(lines: list[Line]) -> None:
    for line in lines:
        for cell in line:
            check_displayable(cell.text)

"""A target that cannot fail finds nothing: each oracle notices a fault that is put into the product."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from agentgym_tui.state.run_store import group_items
from runner.events.live import LazyItem
from runner.inference.sse import EventParser
from tests.fuzz.target import load_corpus, load_target

ESCAPE = b"\x1b[2J"
WIDE = b"\x02" + "漢.字\n\n".encode()


def _fail(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - in place of any function
    raise KeyError("broken")


_FEED = EventParser.feed


def _feed_without_memory(parser: EventParser, chunk: bytes) -> list[bytes]:
    return _FEED(EventParser(), chunk)


def _first_of_each_group(items: Iterable[LazyItem]) -> Iterator[Sequence[LazyItem]]:
    return (group[:1] for group in group_items(items))


@pytest.mark.parametrize(
    ("target", "broken", "replacement", "data"),
    [
        ("display_text", "runner.util.display_text._replaced", lambda: re.compile("(?!)"), b"\x05" + ESCAPE),
        ("display_text", "runner.util.display_text._USERINFO", re.compile("(?!)"), b"\x05x"),
        ("bus_message", "runner.events.codec.MAX_ID", 10**6, b"a\nce-id: " + b"x" * 300 + b"\n\n{}"),
        ("bus_message", "runner.cli.watch.one_line", lambda text, limit: text, b"a\n\n" + ESCAPE),
        ("sse", "runner.inference.sse.EventParser.feed", _feed_without_memory, None),
        ("chat_reply", "runner.inference.tool_calls.unique_ids", list, None),
        ("control_request", "runner.node.handlers.mask", str, b'{"id":"s3cr3t-Value","op":"list"}'),
        ("node_control", "runner.node.batch_queue.BatchQueue.listed", _fail, b'{"id":"a","op":"list"}'),
        ("episode_file", "agentgym_tui.sessions.episode_files.as_messages", _fail, None),
        ("foreign_graph", "runner.formats.verifiers._path", lambda nodes, leaf: [leaf], None),
        ("foreign_rollout", "runner.formats.nemo_gym.tool_calls_from", lambda value: [], None),
        ("foreign_folder", "runner.formats.importing.build_record", _fail, None),
        ("log_line", "agentgym_tui.logs.LineIndex.locate", lambda index, number: (0, 0), None),
        ("live_console", "agentgym_tui.state.run_store.group_items", _first_of_each_group, None),
        ("env_request", "runner.envs.maze.Maze._step", _fail, None),
        ("env_action", "runner.envs.maze.Maze._step", _fail, None),
        (
            "env_reply",
            "runner.envs.http.response.one_line",
            lambda text, limit=200: text,
            b"Maze compat\n500 text/plain " + ESCAPE,
        ),
        ("endpoint_error", "runner.inference.errors.one_line", lambda text, limit: text, b"400 \n\n" + ESCAPE),
        ("screen", "agentgym_tui.safe_text.one_line", lambda text, limit: text, b"\x00a\n\n" + ESCAPE),
        ("screen", "agentgym_tui.presenters.cells.cell_len", len, WIDE),
        ("screen", "agentgym_tui.widgets.lists.display_width", len, WIDE),
    ],
)
def test_a_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, target: str, broken: str, replacement: object, data: bytes | None
) -> None:
    check = load_target(target).check
    inputs = load_corpus(target) if data is None else [data]
    for each in inputs:
        check(each)
    monkeypatch.setattr(broken, replacement)
    with pytest.raises((AssertionError, KeyError)):
        for each in inputs:
            check(each)

"""Raw messages of a bus as the console lists, searches and shows them.

The input is a line with search words, then three lines per message: subject, one header ``name: value``, payload.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.events import EventRows, SubjectRows, entry_info
from agentgym_tui.presenters.payload import VIEWS, payload_rows, payload_text
from agentgym_tui.state.event_log import EventLog, EventMessage, decode_error, is_agentgym_message
from runner.subscribe.buffer import RawMessage
from tests.fuzz.oracles import check_displayable
from tests.fuzz.targets.bus_message import TOKENS as MESSAGE_TOKENS
from tests.support.console.live_items import START

TOKENS = (*MESSAGE_TOKENS, b"\nagentgym.live.token.v1.n\n\n{", b"$JS.API.x", b"a.b.c.d")
MAX_MESSAGES = 5
MAX_ROWS = 50
WIDTHS = (1, 80)


def check(data: bytes) -> None:
    words, *lines = data.split(b"\n")
    log = EventLog(max_entries=4)
    messages = [_message(*lines[at : at + 3]) for at in range(0, len(lines) - 2, 3)][:MAX_MESSAGES]
    log.append(messages, START)
    _check_search(log, words.decode("utf-8", "replace"))
    log.search("")
    rows = EventRows(log)
    for index in range(len(rows)):
        for width in WIDTHS:
            _check_lines([rows.line(index, width)])
        assert rows.key(index) and isinstance(rows.episode_id(index), str)
        entry = rows.entry(index)
        assert isinstance(entry, EventMessage)
        _check_entry(entry)
    subjects = SubjectRows.from_tree(log.subjects)
    for index in range(len(subjects)):
        _check_lines(subjects.line(index, width) for width in WIDTHS)
        assert subjects.key(index) is not None


def _message(subject: bytes, header: bytes, payload: bytes) -> RawMessage:
    name, _, value = header.decode("utf-8", "replace").partition(": ")
    return RawMessage(subject.decode("utf-8", "replace"), {name: value} if name else {}, payload)


def _check_search(log: EventLog, words: str) -> None:
    before = list(log.shown)
    log.search(words)
    assert all(entry in before for entry in log.shown)
    needles = [[form.encode("utf-8", "replace").lower() for form in (word, word.lower())] for word in words.split()]
    for entry in log.shown:
        assert isinstance(entry, EventMessage)
        texts = [entry.subject, *entry.headers, *entry.headers.values()]
        content = "\n".join(texts).encode("utf-8", "replace").lower() + b"\n" + entry.payload.lower()
        assert all(any(form in content for form in forms) for forms in needles)


def _check_entry(entry: EventMessage) -> None:
    is_agentgym_message(entry)
    check_displayable(decode_error(entry))
    for view in VIEWS:
        assert payload_text(entry, view).encode("utf-8", "replace") is not None
        rows = payload_rows(entry, view)
        _check_lines(rows.line(index, 80) for index in range(min(len(rows), MAX_ROWS)))
        _check_lines([entry_info(entry, view)])


def _check_lines(lines: Iterable[Line]) -> None:
    for line in lines:
        for cell in line:
            check_displayable(cell.text)

from __future__ import annotations

from typing import Any

import pytest

from agentgym_tui.commands import Keymap
from agentgym_tui.presenters.cells import FOLD_WIDTH, fit, line_width
from agentgym_tui.presenters.events import (
    SUBJECT_WIDTH,
    EventRows,
    SubjectRows,
    empty_events_lines,
    entry_info,
    events_heading,
    summarize,
)
from agentgym_tui.presenters.payload import payload_rows, payload_text
from agentgym_tui.sessions.event_reader import EventReader
from agentgym_tui.state.event_log import EventLog, EventMessage, EventQuery, LogNotice, SubjectTree, decode_error
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.query import complete
from agentgym_tui.state.run_store import RunStore
from runner.events.codec import encode
from runner.events.durable import BatteryCompleted, DurableEvent
from runner.events.live import LiveBatch, LiveItem
from runner.events.subjects import BATCH_COMPLETED, BATTERY_COMPLETED, EPISODE_COMPLETED, FIELD_STATUS
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import Notice
from tests.support.console.fake_session import FakeEvents
from tests.support.console.hostile_console import hostile_messages
from tests.support.console.line_views import line_text
from tests.support.console.samples import (
    BOOT,
    HOSTILE,
    NODE,
    START,
    batch_completed,
    completed,
    ended,
    episode_id,
    field_status,
    heartbeat,
    started,
    token,
)
from tests.support.escapes import foreign_escapes

LIVE = f"agentgym.live.token.v1.{NODE}"


def message(subject: str, payload: bytes, **headers: str) -> EventMessage:
    return EventMessage(1, START, subject, headers, payload, len(payload), "S", 12)


def live_message(*items: LiveItem, dropped: int = 0) -> EventMessage:
    return message(LIVE, encode(LiveBatch(node=NODE, boot=BOOT, dropped=dropped, items=list(items))))


def make_reader(log: EventLog, query: EventQuery | None = None) -> EventReader:
    reader = EventReader(FakeEvents(), log, lambda: None)
    reader.set_query(query or EventQuery())
    return reader


@pytest.mark.parametrize(
    ("subject", "event", "summary", "episode"),
    [
        (
            EPISODE_COMPLETED,
            completed(1, agent=None, outcome=None, success=False),
            "Wordle failure · reward 0.75 · 3 rounds",
            episode_id(1),
        ),
        (EPISODE_COMPLETED, completed(1), "Wordle success · reward 0.75 · 3 rounds · oracle", episode_id(1)),
        (
            EPISODE_COMPLETED,
            completed(1, agent="react", model="big", fallback="http://me:pw@host, olla\x1bma", models=["big", "a\x1b"]),
            "⚠ Wordle success · reward 0.75 · 3 rounds · react big + a␛ · ↷ answered by http://***@host, olla␛ma",
            episode_id(1),
        ),
        (
            BATCH_COMPLETED,
            batch_completed(model="b", models=["a", "b"]),
            "Wordle completed · 10 episodes · success 70% · mean reward 0.5 · b + a",
            "",
        ),
        (BATCH_COMPLETED, batch_completed(), "Wordle completed · 10 episodes · success 70% · mean reward 0.5", ""),
        (
            BATCH_COMPLETED,
            batch_completed(model="first", models=["spare"]),
            "Wordle completed · 10 episodes · success 70% · mean reward 0.5 · spare",
            "",
        ),
        (
            BATTERY_COMPLETED,
            BatteryCompleted(
                battery_id="B1",
                batches=["b1", "b2"],
                environments=["Maze", "Wordle"],
                n_episodes=4,
                mean_reward=0.5,
                models=["first", "spare"],
                node="pmoves-4090",
                n_cancelled=1,
            ),
            "2 batches · Maze, Wordle · 1 cancelled · 4 episodes · mean reward 0.5 · first, spare",
            "",
        ),
        (
            BATCH_COMPLETED,
            batch_completed(n_episodes=12, success_rate=1.0, mean_reward=1.0, n_rated=6, n_errors=6),
            "Wordle completed · 12 episodes · success 100% of 6 · 6 errors · mean reward 1",
            "",
        ),
        (FIELD_STATUS, field_status(), "node idle · field-runner-4090", ""),
    ],
)
def test_a_durable_event_is_summarized_in_a_line(subject: str, event: DurableEvent, summary: str, episode: str) -> None:
    result = summarize(message(subject, encode(event)))
    assert (result.node, result.cell.text, result.episode_id) == (NODE, summary, episode)
    assert summarize(message("renamed", encode(event), **{"Ce-Type": subject})).cell.text == summary


def test_live_items_are_summarized_in_a_line() -> None:
    result = summarize(live_message(token(2), token(2), started(2), ended(2), heartbeat(), dropped=4))
    assert result.cell.text.startswith("2 token, episode.started, ") and result.episode_id == episode_id(2)
    assert "Wordle" in result.cell.text and result.cell.text.endswith("4 dropped earlier")
    assert summarize(live_message()).cell.text == "nothing"


@pytest.mark.parametrize(
    ("payload", "beginning"),
    [
        (b'{"id": 1}', '{"id": 1}'),
        (b'{"episode_id": "e7", "more": 1}', '{"episode_id": "e7"'),
        (b'{"episode_id": 7}', '{"episode_id": 7}'),
        (b"", "empty"),
        (b"\xff\x00", "2 bytes, not text"),
        ("é".encode() * 400, "é" * 20),
        (b"\x1b[2J\nx", "⚠ ␛[2J␊x"),
    ],
)
def test_a_foreign_payload_is_shown_by_its_beginning(payload: bytes, beginning: str) -> None:
    result = summarize(message("orders.new", payload))
    assert result.cell.text.startswith(beginning) and decode_error(message("orders.new", payload)) == ""
    assert result.episode_id == ("e7" if b'"e7"' in payload else "")


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"node": 1}', b'{"items": [1]}'])
@pytest.mark.parametrize("subject", [LIVE, EPISODE_COMPLETED, FIELD_STATUS])
def test_an_undecodable_payload_is_shown_as_malformed(subject: str, payload: bytes) -> None:
    result = summarize(message(subject, payload))
    assert result.cell.text.startswith("✗ malformed: ") and result.cell.tone == "bad"
    assert "malformed" in line_text(entry_info(message(subject, payload), "raw"))


def test_the_decode_error_counts_undecodable_items() -> None:
    batch = b'{"node": "n", "boot": "b", "dropped": 0, "items": [{"kind": "token"}]}'
    assert decode_error(message(LIVE, batch)).startswith("1 of its items: ")
    span = b'{"kind":"span","at":"2026-01-02T03:04:05Z","episode_id":"e","seq":0,"span":null}'
    batch = b'{"node":"n","boot":"b","dropped":0,"items":[%b]}' % span
    assert decode_error(message(LIVE, batch)).startswith("1 of its items: ")


def test_a_payload_is_shown_in_each_view() -> None:
    event = message("s", b'{"a":[1]}', **{"ce-id": "7"})
    assert payload_text(event, "formatted") == '{\n  "a": [\n    1\n  ]\n}'
    assert payload_text(event, "raw") == '{"a":[1]}'
    assert payload_text(event, "hex").startswith("0000  7b 22 61 22 3a 5b 31 5d 7d ")
    assert line_text(payload_rows(event, "hex").line(0, 80)).endswith('{"a":[1]}')
    assert payload_text(event, "headers").split("\n") == [
        "subject:  s",
        "stream:   S #12",
        "time:     2026-03-04T05:06:07+00:00",
        "size:     9 bytes",
        "",
        "ce-id: 7",
    ]
    assert payload_text(LogNotice(1, START, "gap", "3 left"), "hex") == "3 left" and payload_text(None, "raw") == ""


@pytest.mark.parametrize("payload", [b"[" * 5_000 + b"]" * 5_000, b"[" + b"0," * 300_000 + b"0]", b"no", b"\xff"])
def test_what_is_no_json_or_too_deep_or_too_large_is_not_formatted(payload: bytes) -> None:
    assert payload_text(message("s", payload), "formatted") == payload.decode("utf-8", "replace")


def test_long_lines_are_folded() -> None:
    rows = payload_rows(message("s", b"x" * (2 * FOLD_WIDTH + 5) + b"\n\ny"), "raw")
    assert [len(line_text(rows.line(n, 80))) - 2 for n in range(len(rows))] == [FOLD_WIDTH, FOLD_WIDTH, 5, 0, 1]


def test_a_message_and_a_notice_have_rows() -> None:
    log = EventLog()
    log.append([RawMessage(EPISODE_COMPLETED, {}, encode(completed(1)), "S", 12, START)], START)
    log.append([Notice(kind="gap", text="3 messages left stream S", count=3)], START)
    rows = EventRows(log)
    time, sequence, subject, node, summary_cell = rows.line(0, 120)
    assert time.text.endswith(":07.000") and sequence.text == "12" and node.text == NODE
    assert subject.text == EPISODE_COMPLETED and summary_cell.text.startswith("Wordle success")
    assert "3 messages left" in line_text(rows.line(1, 120)) and len(rows.line(1, 120)) == 3
    assert rows.episode_id(0) == episode_id(1) and rows.episode_id(1) == rows.episode_id(2) == ""


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        ("agentgym.live.timestep.v1.field-runner", "agentgym.live.timestep.v1.fie…"),
        ("factory.hall.line.7.robot.arm.temperature", "factory.hall.l…arm.temperature"),
    ],
)
def test_a_long_subject_keeps_its_distinctive_end(subject: str, shown: str) -> None:
    log = EventLog()
    log.append([RawMessage(subject, {}, b"")], START)
    cell = EventRows(log).line(0, 120)[2]
    assert fit(cell.fitted(SUBJECT_WIDTH), SUBJECT_WIDTH).strip() == shown and cell.fitted(60) == subject


def test_malformed_messages_are_found() -> None:
    log = EventLog()
    log.append(
        [RawMessage(EPISODE_COMPLETED, {}, b"{"), RawMessage("a", {}, b"{"), Notice(kind="gap", text="g")], START
    )
    log.append([RawMessage("agentgym.live.x", {}, b"{}")], START)
    assert complete("is:m", log.query_fields, log.values_of).best == "is:malformed"
    assert log.search("-is:malformed") is None and len(log.shown) == 2
    assert log.search("is:malformed") is None
    assert [getattr(entry, "subject", "") for entry in log.shown] == [EPISODE_COMPLETED, "agentgym.live.x"]
    assert EventRows(log).line(1, 120)[-1].text.startswith("✗ malformed: ")
    heading = events_heading(make_reader(log), log, RunStore(), Keymap().key, 200, kept="is:malformed")
    assert "kept filter is:malformed" in line_text(heading[0])


def test_malformed_messages_that_are_not_listed_are_explained() -> None:
    log, store = EventLog(), RunStore()
    store.n_malformed = 2
    log.search("is:malformed")
    lines = [line_text(line) for line in empty_events_lines(make_reader(log), log, store, Keymap().key, 120)]
    assert "counted above came before this list was read" in lines[1]


def test_the_heading_lists_all_problems() -> None:
    log, store = EventLog(), RunStore()
    store.n_malformed = 4
    store.set_link(BusLink("connected", address="nats://x:1"))
    headers: dict[str, str] = {"ce-source": "n7", "ce-time": "2026-03-04T05:06:03+00:00"}
    log.append([RawMessage("a", headers, b"", "S", 1, START, 2_000), Notice(kind="gap", text="g", count=3)], START)
    log.append([Notice(kind="skipped", text="s", count=5)], START)
    reader = make_reader(log)
    log.append([RawMessage("a", headers, b"", "S", 1, START, 2_000), Notice(kind="gap", text="g", count=3)], START)
    log.append([Notice(kind="skipped", text="s", count=5)], START)
    first, second = (line_text(line) for line in events_heading(reader, log, store, Keymap().key, 200))
    assert first == "Events · ● live · ● connected · nats://x:1"
    assert "1 message · lag 2.0k · 3 in gaps · 5 skipped · 4 malformed (/ is:malformed)" in second


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"paused": True}, "‖ paused"),
        ({"paused": True, "n_waiting": 12}, "‖ paused, 12 waiting"),
        ({"query": EventQuery(start=7, is_history=True)}, "◂ history · from #7"),
        ({"query": EventQuery(start=START, is_history=True)}, "◂ history · from 2026-03-04"),
        ({"query": EventQuery(("a.>",), episode="e1")}, "● live · a.> (esc clears) · episode e1 (esc clears)"),
    ],
)
def test_the_heading_shows_the_query_and_the_reading_state(state: dict[str, Any], expected: str) -> None:
    log = EventLog()
    reader = make_reader(log)
    for name, value in state.items():
        setattr(reader, name, value)
    assert expected in line_text(events_heading(reader, log, RunStore(), Keymap().key, 200)[0])


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_heading_shows_a_filter_of_any_length_and_the_key_that_clears_it(width: int) -> None:
    log = EventLog()
    log.search("orders " * 20)
    heading = events_heading(make_reader(log), log, RunStore(), Keymap().key, width)[0]
    assert "matches orders" in line_text(heading) and "(esc clears)" in line_text(heading)
    assert line_width(heading) <= width


def test_a_full_log_that_is_not_followed_names_the_key_to_continue() -> None:
    log = EventLog(max_entries=1)
    reader = make_reader(log)
    log.append([RawMessage("a", {}, b"")], START)
    reader.following = False
    assert "‖ no room for more; G continues" in line_text(events_heading(reader, log, RunStore(), Keymap().key, 200)[0])
    reader = make_reader(log := EventLog())
    reader.suspended = True
    heading = line_text(events_heading(reader, log, RunStore(), Keymap().key, 200)[0])
    assert "‖ not reading while another screen is shown" in heading
    assert "full" not in heading and "live" not in heading


def test_an_empty_list_shows_the_reason() -> None:
    log, store = EventLog(), RunStore()
    reader = make_reader(log)
    assert "Not connected to the bus" in line_text(empty_events_lines(reader, log, store, Keymap().key, 80)[0])
    store.set_link(BusLink("connected"))
    assert "No messages yet on >" in line_text(empty_events_lines(reader, log, store, Keymap().key, 80)[0])
    log.search("orders")
    assert "No message matches orders" in line_text(empty_events_lines(reader, log, store, Keymap().key, 80)[0])


def test_a_subject_tree_has_rows() -> None:
    tree = SubjectTree()
    for subject in ("a.x", "a.y", "b"):
        tree.add(subject)
    rows = SubjectRows.from_tree(tree)
    assert [line_text(rows.line(n, 40)) for n in range(len(rows))] == ["▾ a2", "  x1", "  y1", "b1"]
    tree.toggle("a")
    rows = SubjectRows.from_tree(tree)
    assert line_text(rows.line(0, 40)).startswith("▹ a (2)") and rows.key(1) == "b" and rows.branch(2) is None
    assert "beyond" in line_text(SubjectRows((), 3).line(0, 40)) and len(SubjectRows((), 3)) == 1


def test_subject_words_are_readable_at_any_depth() -> None:
    tree = SubjectTree()
    tree.add(".".join(f"level{n}" for n in range(40)))
    rows = SubjectRows.from_tree(tree)
    for n in range(len(rows)):
        name = rows.line(n, 30)[0].text
        assert f"level{n}" in name and len(name) <= 7 + len("▾ ") + len(rows.branches[n].word)


def test_a_payload_too_large_to_format_is_reported() -> None:
    large = message("x", b"[" + b"1," * 30_000 + b"1]")
    assert "too large to format" in line_text(entry_info(large, "formatted"))
    assert line_text(entry_info(large, "raw")) == line_text(entry_info(large, "hex")) == "60,003 B"
    assert line_text(entry_info(message("x", b"[1]"), "formatted")) == "3 B"


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_view_emits_hostile_text(width: int) -> None:
    log, store = EventLog(), RunStore()
    store.set_link(BusLink("connected", HOSTILE, HOSTILE))
    log.append(hostile_messages(HOSTILE), START)
    rows, reader = EventRows(log), make_reader(EventLog(), EventQuery((HOSTILE,), episode=HOSTILE))
    log.search("")
    lines = [rows.line(n, width) for n in range(len(rows))]
    entries = [rows.entry(n) for n in range(len(rows))]
    sources = [payload_rows(entry, view) for entry in entries for view in ("formatted", "raw", "hex", "headers")]
    lines += [source.line(n, width) for source in sources for n in range(len(source))]
    lines += [
        *(entry_info(entry, "formatted") for entry in entries),
        *events_heading(reader, log, store, Keymap().key, width),
        *empty_events_lines(reader, EventLog(), store, Keymap().key, width),
    ]
    tree = SubjectRows.from_tree(log.subjects)
    lines += [tree.line(n, width) for n in range(len(tree))]
    for line in lines:
        assert foreign_escapes(line_text(line).encode()) == [], line
    assert all(line_width(line) <= width for line in events_heading(reader, log, store, Keymap().key, width))

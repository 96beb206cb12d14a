"""Every key of every command, pressed on its screen, has its effect; the table must contain all of them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from textual import _wait
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app import Console
from agentgym_tui.commands import COMMANDS, QUESTIONS, apply_together, available_commands, scope_of
from agentgym_tui.config import UiState
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.screens.dialogs.help import help_lines
from agentgym_tui.services import messages
from agentgym_tui.textual_compat import binding_ids
from tests.support.console.fake_session import fleet_session
from tests.support.console.key_presses import (
    KeyPress,
    KeySequence,
    agent_index,
    broken_machine,
    checked_rows,
    clipboard,
    curated_files,
    cursor_of,
    episode_to_read,
    focused_id,
    found_lines,
    growing_files,
    hostile_event,
    is_exiting,
    many_files,
    n_node_restarts,
    n_node_starts,
    n_reopened,
    n_requests,
    n_requests_and_screen,
    n_sent_histories,
    new_broker,
    node_stops,
    pane_sizes,
    running_battery,
    screen_name,
    scroll_offset,
    selected,
    shows,
    sort_order,
    two_logs,
    wide_event,
)
from tests.support.console.pilot import console_app, screen_text, wait_for_text, wait_until
from tests.support.console.result_sessions import results_session

HELP, PALETTE = shows("╭─ Help"), shows("╭─ Commands")
SEQUENCES = {
    "everywhere": KeySequence(
        running_battery,
        "task 4",
        [
            KeyPress("app.help", "question_mark", HELP, True),
            KeyPress("dialog.close", "escape", HELP, False),
            KeyPress("app.help", "question_mark", HELP, True),
            KeyPress("dialog.close", "q", HELP, False),
            KeyPress("app.help", "f1", HELP, True),
            KeyPress("dialog.close", "escape", HELP, False),
            KeyPress("app.palette", "colon", PALETTE, True),
            KeyPress("palette.down", "down", cursor_of("#commands"), 1),
            KeyPress("palette.up", "up", cursor_of("#commands"), 0),
            KeyPress("palette.close", "escape", PALETTE, False),
            KeyPress("app.palette", "ctrl+p", PALETTE, True),
            KeyPress("palette.close", "escape", PALETTE, False),
            KeyPress("app.episodes", "2", screen_name, "EpisodesScreen"),
            KeyPress("app.events", "3", screen_name, "EventsScreen"),
            KeyPress("app.live", "1", screen_name, "LiveScreen"),
            KeyPress("app.zoom", "z", shows("Transcript"), False),
            KeyPress("app.zoom", "z", shows("Transcript"), True),
            KeyPress("pane.narrower", "less_than_sign", pane_sizes),
            KeyPress("pane.wider", "greater_than_sign", pane_sizes),
            KeyPress("pane.lower", "minus", pane_sizes),
            KeyPress("pane.higher", "plus", pane_sizes),
            KeyPress("pane.reset", "equals_sign", pane_sizes, {}),
            KeyPress("table.sort", "o", sort_order),
            KeyPress("table.reverse", "O", sort_order),
            KeyPress("app.screenshot", "", shows("screenshot written to"), True),
            KeyPress("app.settings", "", shows("╭─ Settings"), True),
            KeyPress("dialog.close", "escape", shows("╭─ Settings"), False),
            KeyPress("app.messages", "exclamation_mark", screen_name, "TextDialog"),
            KeyPress("dialog.close", "escape", screen_name, "LiveScreen"),
            KeyPress("node.start", "ctrl+n", n_node_starts, 1),
            KeyPress("node.restart", "", screen_name, "restart_node"),
            KeyPress("restart_node.nothing", "escape", screen_name, "LiveScreen"),
            KeyPress("node.restart", "", screen_name, "restart_node"),
            KeyPress("restart_node.restart", "y", n_node_restarts, 1),
            KeyPress("node.stop", "", screen_name, "stop_node"),
            KeyPress("stop_node.nothing", "escape", screen_name, "LiveScreen"),
            KeyPress("node.stop", "", screen_name, "stop_node"),
            KeyPress("", "up", focused_id, "drain"),
            KeyPress("", "enter", node_stops, [True]),
            KeyPress("node.stop", "", screen_name, "stop_node"),
            KeyPress("stop_node.now", "y", node_stops, [True, False]),
            KeyPress("app.quit", "q", screen_name, "quit"),
            KeyPress("quit.stay", "escape", screen_name, "LiveScreen"),
            KeyPress("app.quit", "ctrl+q", screen_name, "quit"),
            KeyPress("quit.stay", "n", screen_name, "LiveScreen"),
            KeyPress("app.quit", "ctrl+c", screen_name, "quit"),
            KeyPress("fields.next", "down", focused_id, "leave"),
            KeyPress("fields.next", "right", focused_id, "stop"),
            KeyPress("fields.previous", "left", focused_id, "leave"),
            KeyPress("fields.previous", "up", focused_id, "stay"),
            KeyPress("quit.leave", "y", is_exiting, True),
        ],
    ),
    "earlier events": KeySequence(
        new_broker,
        "task 3",
        [
            KeyPress("node.history", "", screen_name, "send_history"),
            KeyPress("send_history.nothing", "escape", screen_name, "LiveScreen"),
            KeyPress("node.history", "", screen_name, "send_history"),
            KeyPress("send_history.send", "y", n_sent_histories, 1),
        ],
    ),
    "live": KeySequence(
        running_battery,
        "task 4",
        [
            KeyPress("run.selected", "r", n_requests, 1),
            KeyPress("run.repeat", "full_stop", n_requests, 2),
            KeyPress("run.pause", "space", n_requests, 3),
            KeyPress("run.step", "s", n_requests, 4),
            KeyPress("run.battery", "b", shows("╭─ Battery"), True),
            KeyPress("dialog.close", "escape", shows("╭─ Battery"), False),
            KeyPress("run.cancel", "x", screen_name, "cancel"),
            KeyPress("cancel.nothing", "escape", screen_name, "LiveScreen"),
            KeyPress("live.next", "right_square_bracket", shows("task 3"), True),
            KeyPress("live.previous", "left_square_bracket", shows("task 4"), True),
            KeyPress("live.world", "W", shows("World ·"), True),
            KeyPress("live.world", "W", shows("World ·"), False),
            KeyPress("live.view", "v", focused_id, "trace"),
            KeyPress("live.view", "v", focused_id, "rewards"),
            KeyPress("live.open", "enter", screen_name, "EpisodeScreen"),
            KeyPress("episode.events", "B", screen_name, "EventsScreen"),
            KeyPress("app.live", "1", screen_name, "EpisodeScreen"),
            KeyPress("episode.back", "escape", screen_name, "LiveScreen"),
            KeyPress("live.events", "B", screen_name, "EventsScreen"),
        ],
    ),
    "runs": KeySequence(
        running_battery,
        "battery of 2",
        [
            KeyPress("runs.open", "enter", shows("▾ battery"), True),
            KeyPress("runs.filter", "slash", focused_id, "filter"),
            KeyPress("", "m", shows("match m"), True),
            KeyPress("filter.leave", "enter", focused_id, "runs"),
            KeyPress("runs.clear", "escape", shows("match m"), False),
            KeyPress("runs.pause", "space", n_requests, 1),
            KeyPress("runs.pause_all", "", n_requests, 2),
            KeyPress("runs.replay", "a", screen_name, "again"),
            KeyPress("again.nothing", "escape", screen_name, "RunsScreen"),
            KeyPress("runs.replay", "a", screen_name, "again"),
            KeyPress("", "shift+tab", focused_id, "errors"),
            KeyPress("", "enter", n_requests_and_screen, (3, "RunsScreen")),
            KeyPress("runs.replay", "a", screen_name, "again"),
            KeyPress("", "tab", focused_id, "all"),
            KeyPress("", "enter", n_requests_and_screen, (4, "RunsScreen")),
            KeyPress("run.repeat", "full_stop", n_requests, 5),
            KeyPress("runs.up", "shift+up", n_requests, 6),
            KeyPress("runs.down", "shift+down", n_requests, 7),
            KeyPress("runs.cancel", "x", n_requests, 8),
            KeyPress("runs.cancel_all", "", screen_name, "cancel_all"),
            KeyPress("cancel_all.nothing", "escape", screen_name, "RunsScreen"),
            KeyPress("runs.cancel_all", "", screen_name, "cancel_all"),
            KeyPress("cancel_all.all", "y", n_requests, 9),
            KeyPress("run.summary", "M", screen_name, "RunSummaryScreen"),
            KeyPress("summary.back", "escape", screen_name, "RunsScreen"),
            KeyPress("run.summary", "M", screen_name, "RunSummaryScreen"),
            KeyPress("summary.results", "", screen_name, "ResultsScreen"),
            KeyPress("app.runs", "6", screen_name, "RunSummaryScreen"),
            KeyPress("summary.open", "enter", screen_name, "EpisodesScreen"),
            KeyPress("app.live", "1", screen_name, "LiveScreen"),
            KeyPress("app.runs", "6", screen_name, "RunSummaryScreen"),
            KeyPress("app.runs", "6", screen_name, "RunsScreen"),
        ],
        ("6",),
    ),
    "machine": KeySequence(
        broken_machine,
        "task 3",
        [
            KeyPress("app.machine", "5", screen_name, "MachineScreen"),
            KeyPress("machine.next", "n", cursor_of("#machine")),
            KeyPress("machine.next", "n", cursor_of("#machine")),
            KeyPress("machine.previous", "p", cursor_of("#machine")),
        ],
    ),
    "fleet": KeySequence(
        fleet_session,
        "5 nodes",
        [
            KeyPress("app.fleet", "8", screen_name, "FleetScreen"),
            KeyPress("fleet.filter", "slash", focused_id, "filter"),
            KeyPress("", "p", shows("match p"), True),
            KeyPress("filter.leave", "enter", focused_id, "fleet"),
            KeyPress("fleet.clear", "escape", shows("match p"), False),
            KeyPress("fleet.open", "enter", screen_name, "MachineScreen"),
        ],
    ),
    "forms and servers": KeySequence(
        running_battery,
        "task 4",
        [
            KeyPress("run.form", "R", screen_name, "RunForm"),
            KeyPress("form.close", "escape", screen_name, "LiveScreen"),
            KeyPress("list.choose", "enter", screen_name, "EpisodesScreen"),
            KeyPress("app.live", "1", screen_name, "LiveScreen"),
            KeyPress("run.form", "R", screen_name, "RunForm"),
            KeyPress("checks.toggle", "space", checked_rows),
            KeyPress("checks.all", "ctrl+a", checked_rows),
            KeyPress("", "tab", focused_id, "agent"),
            KeyPress("choice.right", "right", agent_index),
            KeyPress("choice.left", "left", agent_index),
            KeyPress("choice.right", "l", agent_index),
            KeyPress("choice.left", "h", agent_index),
            KeyPress("choice.right", "space", agent_index),
            KeyPress("choice.left", "left", agent_index),
            KeyPress("fields.next", "down", focused_id, "model"),
            KeyPress("fields.previous", "up", focused_id, "agent"),
            KeyPress("form.start", "enter", focused_id, "start"),
            KeyPress("", "enter", n_requests_and_screen, (1, "LiveScreen")),
            KeyPress("model.form", "ctrl+o", screen_name, "ModelForm"),
            KeyPress("", "x", shows(" x "), True),
            KeyPress("model.try", "enter", focused_id, "try_model"),
            KeyPress("", "enter", shows("✗ type the model's name"), True),
            KeyPress("", "right", focused_id, "write"),
            KeyPress("", "enter", shows("✗ type the model's name"), True),
            KeyPress("model.close", "escape", screen_name, "LiveScreen"),
            KeyPress("", "j", cursor_of("#environments"), 1),
            KeyPress("", "j", cursor_of("#environments"), 2),
            KeyPress("", "j", cursor_of("#environments"), 3),  # the environment that plays
            KeyPress("env.start", "", n_requests, 2),
            KeyPress("env.stop", "", screen_name, "stop_server"),
            KeyPress("stop_server.nothing", "escape", screen_name, "LiveScreen"),
            KeyPress("env.stop", "", screen_name, "stop_server"),
            KeyPress("stop_server.stop", "y", n_requests, 3),
        ],
    ),
    "results": KeySequence(
        results_session,
        "llama4-scout",
        [
            KeyPress("results.batches", "v", shows("Results by batch"), True),
            KeyPress("results.batches", "v", shows("Results by batch"), False),
            KeyPress("results.mark", "c", shows("◆ compares with Maze"), True),
            KeyPress("results.mark", "c", shows("◆"), False),
            KeyPress("results.filter", "slash", focused_id, "filter"),
            KeyPress("", "r", shows("match r"), True),
            KeyPress("filter.leave", "enter", focused_id, "results"),
            KeyPress("results.clear", "escape", shows("match r"), False),
            KeyPress("results.report", "S", screen_name, "EvalReportDialog"),
            KeyPress("report.copy", "y", clipboard),
            KeyPress("report.close", "escape", screen_name, "ResultsScreen"),
            KeyPress("results.failures", "F", screen_name, "ClustersScreen"),
            KeyPress("clusters.filter", "slash", focused_id, "filter"),
            KeyPress("filter.clear", "escape", focused_id, "results"),
            KeyPress("clusters.shortest", "space", screen_name, "EpisodeScreen"),
            KeyPress("episode.back", "escape", screen_name, "ClustersScreen"),
            KeyPress("clusters.open", "enter", shows("failure:"), True),
            KeyPress("episodes.failures", "F", screen_name, "ClustersScreen"),
            KeyPress("clusters.back", "escape", screen_name, "EpisodesScreen"),
            KeyPress("app.results", "7", screen_name, "ClustersScreen"),
            KeyPress("clusters.back", "escape", screen_name, "ResultsScreen"),
            KeyPress("results.tasks", "m", screen_name, "TaskMatrixScreen"),
            KeyPress("matrix.filter", "slash", focused_id, "filter"),
            KeyPress("filter.clear", "escape", focused_id, "results"),
            KeyPress("matrix.open", "enter", screen_name, "EpisodeScreen"),
            KeyPress("episode.back", "escape", screen_name, "TaskMatrixScreen"),
            KeyPress("matrix.compare", "c", screen_name, "CompareScreen"),
            KeyPress("compare.back", "escape", screen_name, "TaskMatrixScreen"),
            KeyPress("matrix.episodes", "", screen_name, "EpisodesScreen"),
            KeyPress("app.results", "7", screen_name, "TaskMatrixScreen"),
            KeyPress("matrix.back", "escape", screen_name, "ResultsScreen"),
            KeyPress("results.open", "enter", screen_name, "EpisodesScreen"),
            KeyPress("app.results", "7", screen_name, "ResultsScreen"),
            KeyPress("results.errors", "", shows("outcome:error"), True),
            KeyPress("app.results", "7", screen_name, "ResultsScreen"),
            KeyPress("results.success", "", shows("outcome:success"), True),
            KeyPress("app.results", "7", screen_name, "ResultsScreen"),
            KeyPress("", "j", cursor_of("#results"), 1),
            KeyPress("results.mark", "c", shows("◆ compares with Wordle"), True),
            KeyPress("", "j", cursor_of("#results"), 2),
            KeyPress("results.mark", "c", screen_name, "ComparisonScreen"),
            KeyPress("comparison.filter", "slash", focused_id, "filter"),
            KeyPress("filter.clear", "escape", focused_id, "results"),
            KeyPress("comparison.compare", "c", screen_name, "CompareScreen"),
            KeyPress("compare.back", "escape", screen_name, "ComparisonScreen"),
            KeyPress("comparison.open", "enter", screen_name, "EpisodesScreen"),
            KeyPress("app.results", "7", screen_name, "ComparisonScreen"),
            KeyPress("comparison.back", "escape", screen_name, "ResultsScreen"),
        ],
        ("7",),
    ),
    "growing results": KeySequence(
        growing_files,
        "Results ·",
        [KeyPress("results.reload", "ctrl+r", lambda app: screen_text(app).split("\n")[1])],
        ("7",),
    ),
    "text hits": KeySequence(
        found_lines,
        "60 episodes",
        [
            KeyPress("episodes.hits", "L", shows("add words of a text"), True),
            KeyPress("", "slash", focused_id, "filter"),
            *[KeyPress("", key, lambda app: app.focused.value) for key in "text:door"],  # type: ignore[union-attr]
            KeyPress("", "enter", shows("2 match text:door"), True),
            KeyPress("episodes.hits", "L", screen_name, "HitsScreen"),
            KeyPress("", "j", cursor_of("#hits"), 1),
            KeyPress("hits.open", "enter", shows("1 of 2"), True),
            KeyPress("hit.next", "n", shows("2 of 2"), True),
            KeyPress("hit.previous", "N", shows("1 of 2"), True),
            KeyPress("", "escape", screen_name, "HitsScreen"),
            KeyPress("hits.back", "escape", screen_name, "EpisodesScreen"),
        ],
        ("2",),
    ),
    "whole episode": KeySequence(
        episode_to_read,
        "1 episode",
        [
            KeyPress("", "enter", screen_name, "EpisodeScreen"),
            KeyPress("episode.whole", "f", shows("● All"), True),
            KeyPress("whole.step_next", "right_parenthesis", selected("#steps"), "1"),
            KeyPress("whole.step_previous", "left_parenthesis", selected("#steps"), "0"),
            KeyPress("whole.reward_next", "right_curly_bracket", selected("#steps"), "1"),
            KeyPress("whole.invalid_next", "asterisk", selected("#steps"), "2"),
            KeyPress("whole.error_next", "right_square_bracket", selected("#steps"), "3"),
            KeyPress("whole.invalid_previous", "number_sign", selected("#steps"), "2"),
            KeyPress("whole.reward_previous", "left_curly_bracket", selected("#steps"), "1"),
            KeyPress("whole.error_previous", "left_square_bracket", shows("no earlier step with an error"), True),
            KeyPress("whole.system", "S", shows("no texts of the kind: system"), True),
            KeyPress("whole.observations", "V", shows("folded: observations"), True),
            KeyPress("whole.thoughts", "H", shows("no texts of the kind: thoughts"), True),
            KeyPress("whole.tool", "K", shows("observations, tool calls"), True),
            KeyPress("whole.answers", "", shows("tool calls, answers"), True),
            KeyPress("whole.notes", "", shows("answers, notes"), True),
            KeyPress("episode.find", "slash", shows("words in this view"), True),
            KeyPress("find.leave", "escape", shows("words in this view"), False),
            KeyPress("", "slash", shows("words in this view"), True),
            *[KeyPress("", key, lambda app: app.focused.value) for key in "guess"],  # type: ignore[union-attr]
            KeyPress("find.take", "enter", shows("of 8"), True),
            KeyPress("match.next", "n", cursor_of("#whole")),
            KeyPress("match.previous", "N", cursor_of("#whole")),
        ],
        ("2",),
        (200, 50),
    ),
    "episodes": KeySequence(
        many_files,
        "60 episodes",
        [
            KeyPress("list.down", "j", cursor_of("#episodes"), 1),
            KeyPress("list.down", "down", cursor_of("#episodes"), 2),
            KeyPress("list.up", "k", cursor_of("#episodes"), 1),
            KeyPress("list.up", "up", cursor_of("#episodes"), 0),
            KeyPress("list.page_down", "ctrl+d", cursor_of("#episodes")),
            KeyPress("list.page_up", "ctrl+u", cursor_of("#episodes"), 0),
            KeyPress("list.page_down", "pagedown", cursor_of("#episodes")),
            KeyPress("list.page_up", "pageup", cursor_of("#episodes"), 0),
            KeyPress("list.bottom", "G", cursor_of("#episodes"), 59),
            KeyPress("list.top", "g", cursor_of("#episodes"), 0),
            KeyPress("list.bottom", "end", cursor_of("#episodes"), 59),
            KeyPress("list.top", "home", cursor_of("#episodes"), 0),
            KeyPress("episodes.filter", "slash", focused_id, "filter"),
            KeyPress("filter.newer", "down", focused_id, "episodes"),
            KeyPress("episodes.filter", "slash", focused_id, "filter"),
            KeyPress("filter.complete", "tab", focused_id, "episodes"),
            KeyPress("episodes.filter", "slash", focused_id, "filter"),
            KeyPress("", "7", shows("match 7"), True),
            KeyPress("filter.leave", "enter", focused_id, "episodes"),
            KeyPress("episodes.clear", "escape", shows("match 7"), False),
            KeyPress("episodes.filter", "slash", focused_id, "filter"),
            KeyPress("filter.older", "up", shows("match 7"), True),
            KeyPress("filter.clear", "escape", focused_id, "episodes"),
            KeyPress("queries.open", "Q", screen_name, "SavedQueries"),
            KeyPress("saved.close", "escape", screen_name, "EpisodesScreen"),
            KeyPress("episodes.copy_path", "C", clipboard),
            KeyPress("episodes.pager", "P", shows("not opened"), True),
            KeyPress("episodes.editor", "E", shows("not opened"), True),
            KeyPress("episodes.compare", "c", shows("is marked"), True),
            KeyPress("", "j", cursor_of("#episodes"), 1),
            KeyPress("episodes.compare", "c", screen_name, "CompareScreen"),
            KeyPress("compare.next", "n", shows("last difference"), True),
            KeyPress("compare.previous", "p", shows("first difference"), True),
            KeyPress("compare.open", "enter", screen_name, "EpisodeScreen"),
            KeyPress("", "p", shows("1 of 2"), True),
            KeyPress("episode.back", "escape", screen_name, "CompareScreen"),
            KeyPress("", "right", shows("▸B"), True),
            KeyPress("", "left", shows("▸A"), True),
            KeyPress("", "l", shows("▸B"), True),
            KeyPress("compare.open", "enter", screen_name, "EpisodeScreen"),
            KeyPress("", "n", shows("2 of 2"), True),
            KeyPress("episode.back", "escape", screen_name, "CompareScreen"),
            KeyPress("compare.back", "escape", screen_name, "EpisodesScreen"),
            KeyPress("", "k", cursor_of("#episodes"), 0),
            KeyPress("episodes.open", "enter", screen_name, "EpisodeScreen"),
            KeyPress("episode.next", "n", shows("2 of 60"), True),
            KeyPress("episode.previous", "p", shows("1 of 60"), True),
            KeyPress("episode.trace", "w", shows("● Trace"), True),
            KeyPress("trace.zoom", "space", shows("space: all"), True),
            KeyPress("trace.write", "", lambda app: "ui.perfetto.dev" in messages(app)[0].text, True),
            KeyPress("episode.world", "W", shows("● World"), True),
            KeyPress("episode.json", "d", shows("● Data"), True),
            KeyPress("episode.evaluation", "v", shows("● Evaluation"), True),
            KeyPress("episode.copy", "y", clipboard),
            KeyPress("episode.transcript", "t", shows("● Transcript"), True),
            KeyPress("episode.copy_raw", "Y", clipboard),
            KeyPress("episode.copy_all", "", shows("clipboard (OSC 52)"), True),
            KeyPress("episode.copy_path", "C", clipboard),
            KeyPress("episode.compare", "c", lambda app: app.session.store.marked_episode),
            KeyPress("episode.compare", "c", lambda app: app.session.store.marked_episode, ""),
            KeyPress("episode.export", "e", shows("export"), True),
            KeyPress("episode.pager", "P", shows("not opened"), True),
            KeyPress("episode.editor", "E", shows("not opened"), True),
            KeyPress("episode.back", "escape", screen_name, "EpisodesScreen"),
        ],
    ),
    "tags": KeySequence(
        running_battery,
        "task 4",
        [
            KeyPress("app.episodes", "2", screen_name, "EpisodesScreen"),
            KeyPress("episodes.tag", "T", screen_name, "TagDialog"),
            KeyPress("tags.close", "escape", screen_name, "EpisodesScreen"),
            KeyPress("episodes.tag", "T", screen_name, "TagDialog"),
            KeyPress("", "g", shows(" g "), True),
            KeyPress("tags.save", "enter", focused_id, "save"),
            KeyPress("", "enter", shows("#g "), True),
            KeyPress("", "enter", screen_name, "EpisodeScreen"),
            KeyPress("episode.tag", "T", screen_name, "TagDialog"),
            KeyPress("", "h", shows(" g h "), True),
            KeyPress("tags.save", "enter", focused_id, "save"),
            KeyPress("", "enter", shows("#g #h"), True),
            KeyPress("episode.note", "i", screen_name, "TagDialog"),
            KeyPress("", "w", shows("╭─ Tags and notes of step"), True),
            KeyPress("tags.save", "enter", focused_id, "save"),
            KeyPress("", "enter", shows("note on the step"), True),
            KeyPress("episode.note", "i", screen_name, "TagDialog"),
            KeyPress("", "tab", focused_id, "notes"),
            KeyPress("tags.remove", "D", shows("ada  w"), False),
            KeyPress("tags.close", "escape", shows("note on the step"), False),
        ],
    ),
    "clean-up": KeySequence(
        curated_files,
        "3 episodes",
        [
            KeyPress("episodes.select", "space", shows("●1 selected"), True),
            KeyPress("episodes.select_all", "ctrl+a", shows("●3 selected"), True),
            *(
                KeyPress(command, key, read, expected)
                for name, key, dialog in (("archive", "A", "archive"), ("delete", "D", "delete"))
                for command, key, read, expected in (
                    (f"episodes.{name}", key, screen_name, dialog),
                    (f"{name}.nothing", "escape", screen_name, "EpisodesScreen"),
                    (f"episodes.{name}", key, screen_name, dialog),
                    (f"{name}.{name}", "y", shows(f"episodes {name}d" if name != "delete" else "deleted"), True),
                    ("", "ctrl+a", shows("●3 selected"), True),
                )
            ),
            KeyPress("episodes.export", "e", screen_name, "ExportForm"),
            KeyPress("", "down", focused_id, "output"),
            KeyPress("export.start", "enter", focused_id, "start"),
            KeyPress("", "right", focused_id, "audit"),
            KeyPress("", "enter", shows("would train 41% of its groups"), True),
            KeyPress("", "left", focused_id, "start"),
            KeyPress("", "enter", shows("1 left out: it has no steps"), True),
            KeyPress("export.close", "escape", screen_name, "EpisodesScreen"),
        ],
    ),
    "reload": KeySequence(
        growing_files, "61 episodes", [KeyPress("episodes.reload", "ctrl+r", shows("62 episodes"), True)], size=(80, 24)
    ),
    "bytes": KeySequence(hostile_event, "⚠", [KeyPress("text.hex", "X", screen_name, "HexDumpDialog")], ("3",)),
    "log": KeySequence(
        two_logs,
        '"number": 0',
        [
            KeyPress("log.view", "v", shows("● Raw"), True),
            KeyPress("log.copy", "y", clipboard),
            KeyPress("", "j", cursor_of("#lines"), 1),
            KeyPress("log.copy_raw", "Y", clipboard),
            KeyPress("log.go_to", "J", focused_id, "entry"),
            KeyPress("entry.leave", "escape", focused_id, "lines"),
            KeyPress("log.filter", "slash", focused_id, "filter"),
            KeyPress("", "7", shows("· 10 match"), True),
            KeyPress("filter.leave", "enter", focused_id, "lines"),
            KeyPress("log.clear", "escape", shows("· 10 match"), False),
            KeyPress("log.next", "n", shows("two.jsonl"), True),
            KeyPress("log.previous", "p", shows("one.jsonl"), True),
            KeyPress("log.reload", "ctrl+r", n_reopened, 1),
            KeyPress("app.episodes", "2", screen_name, "EpisodesScreen"),
            KeyPress("app.logs", "4", screen_name, "LogScreen"),
        ],
        ("4",),
    ),
    "events": KeySequence(
        wide_event,
        "bills",
        [
            KeyPress("events.pause", "space", shows("‖ paused"), True),
            KeyPress("events.pause", "space", shows("● live"), True),
            KeyPress("events.copy", "y", clipboard),
            KeyPress("events.view", "v", shows("● Raw"), True),
            KeyPress("events.copy_raw", "Y", clipboard),
            KeyPress("", "enter", focused_id, "payload"),
            KeyPress("list.right", "l", scroll_offset("#payload"), 8),
            KeyPress("list.right", "right", scroll_offset("#payload"), 16),
            KeyPress("list.left", "h", scroll_offset("#payload"), 8),
            KeyPress("list.left", "left", scroll_offset("#payload"), 0),
            KeyPress("events.tree", "t", focused_id, "subjects"),
            KeyPress("", "j", cursor_of("#subjects"), 1),
            KeyPress("", "left", shows("▹ orders (1)"), True),
            KeyPress("", "l", shows("▾ orders"), True),
            KeyPress("", "j", cursor_of("#subjects"), 2),
            KeyPress("", "h", cursor_of("#subjects"), 1),
            KeyPress("", "h", shows("▹ orders (1)"), True),
            KeyPress("", "right", shows("▾ orders"), True),
            KeyPress("events.tree", "t", focused_id, "messages"),
            KeyPress("events.filter", "slash", focused_id, "filter"),
            KeyPress("filter.clear", "escape", focused_id, "messages"),
            KeyPress("events.episode", "B", shows("episode xxxx"), True),
            KeyPress("events.go_to", "J", focused_id, "entry"),
            KeyPress("entry.leave", "escape", focused_id, "messages"),
            KeyPress("events.subject", "u", focused_id, "entry"),
            KeyPress("", "x", shows("ux"), False),
            KeyPress("entry.take", "enter", focused_id, "messages"),
            KeyPress("events.clear", "escape", shows("episode xxxx"), False),
        ],
        ("3",),
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
async def test_each_key_has_its_effect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", 0.001)  # no longer wait is needed: each effect is waited for
    sequence = SEQUENCES[name]
    app = console_app(sequence.session(), ui_state=UiState())
    async with app.run_test(size=sequence.size, notifications=True) as pilot:
        await wait_until(pilot, lambda: app.focused is not None, "a screen")
        await pilot.press(*sequence.first_keys)
        await wait_for_text(pilot, sequence.first_text)
        for press in sequence.presses:
            await wait_until(
                pilot,
                lambda: isinstance(app.screen, ConsoleScreen) and app.screen.accepts_keys,
                f"a screen for {press}",
            )
            check_scopes(app)
            check_help(app)
            before = press.read(app) if press.expected is ... else ...
            await run_press(pilot, press)
            await wait_until(pilot, lambda: is_done(app, press, before), f"{press}, not {before!r}")  # noqa: B023
            if press.read is screen_name:
                screen_text(app)  # no key leads to a screen that cannot be drawn
            app.clear_notifications()  # they cover what later keys show
    for log in app.session.logs:
        log.close()


async def run_press(pilot: Pilot[None], press: KeyPress) -> None:
    """Press the key, or run a command without one by the palette, which also finds ids."""
    if press.key:
        await pilot.press(press.key)
        return
    await pilot.press("ctrl+p")
    await wait_until(pilot, lambda: isinstance(pilot.app.focused, Input), "the palette")
    pilot.app.post_message(Paste(press.command))
    await pilot.press("enter")


def is_done(app: Console, press: KeyPress, before: object) -> bool:
    value = press.read(app)
    return value != before if press.expected is ... else value == press.expected


def check_scopes(app: Console) -> None:
    """What is bound now applies together by its scopes; only a field handles its keys before all others."""
    assert isinstance(app.screen, ConsoleScreen)
    scope, field = scope_of(app.screen.SCOPE), app.focused if isinstance(app.focused, Input) else None
    assert scope.modal == app.screen.is_modal
    assert not scope.modal or scope.typing == bool(app.screen.query(Input)), scope.id
    bound = {
        command.scope: command
        for node in filter(None, (app.focused, app.screen, None if scope.modal else app))
        for command in (COMMANDS.get(id) for id in binding_ids(node))
        if command is not None
    }
    own = {COMMANDS[id].scope for id in binding_ids(field) if COMMANDS.get(id)} if field is not None else set()
    assert all(scope_of(each).typing for each in own)
    assert not scope.modal or bound["everywhere"].id == "app.help"
    apart = [(a.scope, b.scope) for a, b in combinations(bound.values(), 2) if not apply_together(a, b)]
    assert [pair for pair in apart if not own & {*pair}] == []


def check_help(app: Console) -> None:
    """No two sections of the help have one name, and it has all keys that apply, each once."""
    commands = [each.command for each in available_commands(app, app.session)]
    assert len(commands) == len({command.id for command in commands})
    lines = ["".join(cell.text for cell in line) for line in help_lines(commands, app.keys, 200)]
    sections = [line for line in lines if line and not line.startswith(" ")]
    assert len(sections) == len({*sections})
    assert all(any(f"  {command.title}" in line for line in lines) for command in commands)


def test_every_key_of_every_command_is_pressed() -> None:
    pressed = {(press.command, press.key) for sequence in SEQUENCES.values() for press in sequence.presses}
    all_keys = {(command.id, key) for command in COMMANDS for key in command.keys.split(",")}
    answers = {each for each in all_keys if COMMANDS[each[0]].scope in QUESTIONS}  # test_dialogs gives them all
    assert all_keys - pressed - answers == {("app.suspend", "ctrl+z")}


@pytest.mark.parametrize(
    "scope", ["live", "machine", "runs", "fleet", "summary", "episodes", "episode", "events", "log"]
)
def test_no_key_has_two_commands_on_a_screen(scope: str) -> None:
    commands = [command for command in COMMANDS if command.scope in (scope, "run", "everywhere", "list", "table")]
    keys = [key for command in commands if command.keys for key in command.keys.split(",")]
    shared = {key for key in keys if keys.count(key) > 1}
    assert shared <= {"enter"}  # a list handles it or leaves it to its screen

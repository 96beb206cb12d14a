"""A key that changes data or leaves the screen means one thing in the whole console, under one title."""

from __future__ import annotations

from collections import defaultdict

from agentgym_tui.commands import COMMANDS, scope_of

EXEMPT = {*("enter", "escape", "space", "tab", "y", "n", "up", "down", "left", "right", "shift+up", "shift+down")}

VIEWS = {
    *(f"{scope}.view" for scope in ("live", "events", "log")),
    *("results.batches", "results.report", "episode.evaluation", "episode.transcript", "events.tree", "whole.system"),
    *("live.next", "live.previous", "whole.error_next", "whole.error_previous", "match.previous", "hit.previous"),
    *("machine.previous", "compare.previous", "episode.previous", "log.previous", "episode.find"),
    *(
        f"{id}.filter"
        for id in ("runs", "fleet", "episodes", "results", "clusters", "matrix", "comparison", "events", "log")
    ),
    *("list.left", "list.right", "choice.left", "choice.right", "app.quit", "dialog.close"),
}
"""Commands that neither change data nor leave the screen; those of reading dialogs may share the key that quits."""

SEVERAL = {
    **{"v": {"View", "By batch", "Evaluation"}, "t": {"Transcript", "Subjects"}, "S": {"Score", "System"}},
    **{"right_square_bracket": {"Next run", "Error"}, "left_square_bracket": {"Previous run", "Error"}},
    **{"N": {"Previous", "Prev line"}, "p": {"Previous", "Prev"}, "slash": {"Filter", "Find"}},
    **{"h": {"Left", "Previous"}, "l": {"Right", "Next"}, "q": {"Quit", "Close"}},
}
"""The keys with several meanings, all of views."""


def test_a_key_that_changes_data_or_leaves_the_screen_means_one_thing() -> None:
    titles, ids = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for command in COMMANDS:
        for key in {*command.keys.split(",")} - EXEMPT - {""}:
            titles[key].add(command.title)
            ids[key].add(command.id)
    several = {key: found for key, found in titles.items() if len(found) > 1}
    assert several == SEVERAL
    assert set().union(*(ids[key] for key in several)) <= VIEWS


def test_the_palette_knows_the_way_to_every_command_outside_dialogs_and_fields() -> None:
    scopes = {command.scope for command in COMMANDS} - {"everywhere", "run", "checks", "choice"}
    screens = {"live", "episodes", "events", "results", "machine", "runs", "fleet"}
    ways = {id for id in scopes if (scope := scope_of(id)).where or scope.modal or scope.typing}
    assert scopes - ways == screens

from __future__ import annotations

import pytest

from agentgym_tui.commands import COMMANDS, Keymap
from agentgym_tui.presenters.live import KEYS, READ_ONLY_KEYS, welcome_lines, welcome_title
from agentgym_tui.presenters.status_line import status_lines
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from tests.support.console.line_views import line_text, line_texts
from tests.support.console.samples import busy_store, empty_store, row


def test_the_welcome_lists_keys_and_missing_parts() -> None:
    shown = line_texts(welcome_lines(empty_store(), 100, Keymap({"run.form": "f4,R"}).key))
    commands = {command.id: command for command in COMMANDS if command.scope in ("run", "live", "everywhere")}
    assert all(commands[id].help == what for id, what in (*KEYS, *READ_ONLY_KEYS))
    assert [each for each in shown if any(what in each for _, what in KEYS)] == [
        "  r  run the selected environment once",
        "  f4  choose what to run and how",
        "  b  run all environments of a tier",
    ]
    assert any("→ f4  choose the oracle agent" in each for each in shown)
    assert any("  ALFWorld, SQLGym, WebShop: not installed  → agentgym-runner --list-envs" in each for each in shown)
    assert any("no model checked yet" in each and "oracle" in each for each in shown)
    assert next(each for each in shown if "no model" in each or "ALFWorld" in each).startswith("  no model")


def test_the_welcome_headline_counts_stored_episodes() -> None:
    store = empty_store()
    headlines = []
    for rows in (None, [], [row(0)]):
        if rows is not None:
            store.apply_stored(rows)
        headlines.append(line_text(welcome_title(store, Keymap().key, "", 80)).strip())
    assert headlines == [
        "Welcome · Nothing is running yet",
        "Welcome · Nothing has been run yet",
        "Welcome · 2 lists 1 stored episode",
    ]


def test_a_brief_welcome_has_the_keys_and_then_what_is_missing_in_rows_that_fit() -> None:
    shown = line_texts(welcome_lines(empty_store(), 50, Keymap().key, is_brief=True))
    assert [each.strip() for each in shown] == [
        "r  run the selected environment once",
        "R  choose what to run and how",
        "b  run all environments of a tier",
        "no model checked yet",
        "→ R  choose the oracle agent: no model needed",
        "· your own model: ^o",
        "ALFWorld, SQLGym, WebShop: not installed",
        "→ agentgym-runner --list-envs",
    ]


CAUSE = (
    "/proc/foo/logs cannot be created: No such file or directory; "
    + "so " * 60
    + "choose another folder with --data-dir"
)


@pytest.mark.parametrize("width", [56, 76, 200])
def test_the_complete_cause_of_a_failure_is_shown(width: int) -> None:
    store = RunStore()
    store.set_link(BusLink(status="failed", cause=CAUSE))
    shown = line_texts(welcome_lines(store, width, Keymap().key))
    assert max(map(len, shown)) <= width
    assert CAUSE in " ".join(each.strip() for each in shown)
    assert shown[0] == "Missing"
    assert any("→ ^n  retries" in each for each in shown)
    busy = busy_store()
    busy.set_link(BusLink(status="failed", cause=CAUSE[-100:]))
    assert CAUSE[-100:] in " ".join(
        each.strip() for each in line_texts(status_lines(busy, "here", width, max_cause_lines=3))
    )


def test_a_read_only_welcome_offers_no_forbidden_action() -> None:
    store = RunStore()
    store.set_link(BusLink(status="failed", cause="no node has run in /tmp/x; name a bus with --nats"))
    shown = line_texts(welcome_lines(store, 90, Keymap().key, "watching only"))
    assert [each.strip() for each in shown if "→" in each] == [
        "→ ssh -NL PORT:127.0.0.1:PORT HOST  PORT of `agentgym-runner nats-info` there",
        "→ NATS_USER, NATS_PASSWORD  from its credential file, or of your site's broker",
        "→ agentgym-tui watch --nats URL  docs/run/many-machines.md has more",
    ]
    assert "watching only" in shown
    assert not any(what in each for each in shown for _, what in KEYS)
    assert not any("→ N  " in each or "agentgym-tui launch" in each for each in shown)


def test_a_read_only_welcome_names_the_events_screen_only_with_a_bus() -> None:
    store = RunStore()
    store.set_link(BusLink(status="connected"))
    assert "  3  all bus messages" in line_texts(welcome_lines(store, 80, Keymap().key, "watching only"))
    store.set_link(BusLink(status="none"))
    assert not any("bus" in each for each in line_texts(welcome_lines(store, 80, Keymap().key, "files only")))
    store.set_link(BusLink(status="starting"))
    assert line_texts(welcome_lines(store, 80, Keymap().key))[-1] == "  ○ node starting", "it has no hint"

from __future__ import annotations

from typing import Any

import pytest

from agentgym_tui.commands import Keymap
from agentgym_tui.presenters.episode_facts import failover_text, streaming_parts
from agentgym_tui.presenters.live import transcript_title, welcome_lines
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.presenters.status_line import episode_line, progress_line, status_line, status_lines
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.episode import StreamingAnswer
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import Failover
from runner.subscribe.messages import Notice
from runner.types import WorkerCounts
from tests.support.console.line_views import line_text, line_texts
from tests.support.console.samples import (
    START,
    busy_store,
    empty_store,
    episode,
    error_store,
    heartbeat,
    hostile_store,
    live,
    model_health,
    progress,
    started,
    streaming_store,
    token,
)


def test_the_status_line_starts_with_the_most_important() -> None:
    store = busy_store()
    assert line_text(status_line(store, "here", 60)) == ("● connected · node pmoves-4090 running · /srv/agentgym/data")
    wide = line_text(status_line(store, "here", 200))
    assert "/srv/agentgym/data · model tensorzero up · cpu 12% ram 40% · RTX 4090 34% 5.0/16.0 GiB" in wide
    assert len(line_text(status_line(store, "here", 10))) == 10


def test_the_status_line_shows_problems() -> None:
    store = error_store()
    shown = line_text(status_line(store, "here", 200))
    assert "✗ disconnected · node pmoves-4090 ✗ node lost · connection refused" in shown
    assert "model unknown" in shown, "the last check of a lost node says nothing about now"
    assert "tensorzero up" not in shown
    store.link.cause = "refused because " * 50
    assert "✗ node lost · refused" in line_text(status_line(store, "here", 80))
    store.link.cause = ""
    store.apply_events([live(model_health("ollama", "down", "refused"), dropped=4)])
    shown = line_text(status_line(store, "here", 200))
    assert "model tensorzero up (ollama down)" in shown
    assert "4 live items not sent" in shown
    store.apply_events([live(started(7), node="other")])
    assert "2 nodes" in line_text(status_line(store, "here", 200))


def test_the_status_line_counts_everything_that_was_lost() -> None:
    store = RunStore()
    gaps = [Notice(kind="gap", text=f"{n} messages left stream S", count=n) for n in range(1, 300)]
    store.apply_events([*gaps, Notice(kind="skipped", text="too slow", count=5)])
    assert len(store.notices) < len(gaps)
    store.apply_events([live(started(0), dropped=7), live(token(0, 4), dropped=7), live(token(1, 1), dropped=7)])
    shown = line_text(status_line(store, "here", 200))
    assert f"7 live items not sent, {sum(range(300)) + 5:,} messages lost, 4 items missing" in shown
    store.apply_events([live(*(token(0, seq) for seq in (1, 2, 3)), dropped=7)])
    assert "messages lost, 1 item missing" in line_text(status_line(store, "here", 200))


def test_the_status_line_shows_that_nothing_can_be_stored_until_there_is_room() -> None:
    store = busy_store()
    problem = "nothing can be stored in /srv/data: its disk is full (0 KiB are free); 2 batches wait"
    store.apply_events([live(heartbeat(f"{problem}\x1b[2J"))])
    next(iter(store.nodes.values())).data_dir = "/srv/data"
    assert problem in (shown := line_text(status_line(store, "here", 200)))
    assert shown.count("/srv/data") == 1, "the folder is named once"
    assert "nothing can be stored" in "".join(line_texts(status_lines(store, "here", 60, max_cause_lines=3)))
    store.apply_events([live(heartbeat(problem), node="other")])
    assert f"pmoves-4090: {problem}" in line_text(status_line(store, "here", 300))
    store.apply_events([live(heartbeat()), live(heartbeat(), node="other")])
    assert "nothing can be stored" not in line_text(status_line(store, "here", 300))


@pytest.mark.parametrize(
    ("gateway", "ollama", "expected", "missing"),
    [
        ({"status": "up"}, {"status": "up"}, "model gateway up", []),
        ({"status": "up"}, {"status": "down"}, "model gateway up (ollama down)", []),
        ({"status": "slow"}, {"status": "down"}, "model gateway slow (ollama down)", []),
        ({"status": "down"}, {"status": "up"}, "↷ model ollama up, gateway down", ["gateway"]),
        ({"status": "up", "rest_s": 27.0}, {"status": "up"}, "↷ model ollama up, gateway cooling down", ["gateway"]),
        ({"status": "down"}, {"status": "wrong"}, "✗ model gateway down, ollama wrong", ["gateway", "ollama"]),
        ({"status": "unknown"}, {"status": "down"}, "✗ model gateway not checked, ollama down", ["gateway", "ollama"]),
    ],
)
def test_the_status_shows_which_endpoint_is_in_use(
    gateway: dict[str, Any], ollama: dict[str, Any], expected: str, missing: list[str]
) -> None:
    store = empty_store()
    fields = {"cause": None}
    store.apply_events(
        [live(model_health("gateway", **{**fields, **gateway}), model_health("ollama", **{**fields, **ollama}))]
    )
    assert f" · {expected} · cpu" in f" · {line_text(status_line(store, 'here', 200))}"
    shown = line_texts(welcome_lines(store, 100, Keymap().key))
    assert [name for name in ("gateway", "ollama") if any(f"model {name}" in each for each in shown)] == missing


def test_a_failover_is_summarized_in_a_line() -> None:
    failover = Failover("Wordle", ("gateway",), "no connection: http://me:secret@host refused", "ollama", START)
    assert failover_text(failover).startswith("Wordle: gateway failed (no connection: ")
    assert failover_text(failover).endswith("); using ollama")
    assert "secret" not in failover_text(failover)
    assert failover_text(failover._replace(failed=(), endpoint="gateway")) == "Wordle: gateway responds again"


def test_the_transcript_title_shows_endpoint_and_speed() -> None:
    store = streaming_store(fallback=True)
    played = store.running_episodes()[0]
    assert line_text(transcript_title(played, 0, "", 100)).strip() == (
        "Transcript · step 0 · gateway · 42 tokens/s · first token 400 ms · cost 0.00031"
    )
    assert "step 1 · ↷ ollama · 42 tokens/s" in line_text(transcript_title(played, 1, "", 100))
    streaming = "step 2 · ↷ ollama · ≈ 18 tokens/s · first token 400 ms"
    assert streaming in line_text(transcript_title(played, 2, "", 100))
    assert "↷ ollama instead of gateway" in line_text(episode_line(store, played, 100))
    parts = streaming_parts(StreamingAnswer(failures=("a: away",)))
    assert [line_text(part) for part in parts if part] == ["↷ no endpoint has answered", "no answer yet"]


def test_the_progress_line_shows_tokens_and_cost() -> None:
    store = streaming_store()
    batch = store.batch_registry.active()
    assert batch is not None
    shown = line_text(progress_line(batch, 120, now=0.0, spent=store.usage_of(batch)))
    assert "8.6k tokens · cost 0.00482" in shown


def test_secrets_in_a_cause_are_masked() -> None:
    store = RunStore()
    store.set_link(BusLink(status="failed", cause="nats://user:hunter22@host: refused", address="nats://u:p4ssw0rd@h"))
    shown = line_text(status_line(store, "here", 200)) + "".join(line_texts(welcome_lines(store, 200, Keymap().key)))
    assert "hunter22" not in shown
    assert "p4ssw0rd" not in shown
    store.apply_events([live(model_health("http://me:hunter22@h", "up", None))])
    assert "model http://***@h up" in line_text(status_line(store, "here", 200))


def test_what_is_known_of_models_stands_until_all_nodes_are_lost() -> None:
    store = busy_store()
    store.apply_events([live(heartbeat(), node="other")])
    store.mark_node_lost("other")
    assert "2 nodes, 1 lost · " in (shown := line_text(status_line(store, "here", 200)))
    assert "model tensorzero up" in shown
    store.mark_node_lost("pmoves-4090")
    assert "model unknown" in line_text(status_line(store, "here", 200))


def test_the_progress_line_has_a_bar_and_the_time_left_unless_the_node_is_lost() -> None:
    store = busy_store()
    batch = store.batch_registry.active()
    assert line_text(progress_line(batch, 80, now=0.0)) == (
        "████░░░░░░░░░ 3/10 · Wordle · time left 3:21 · success 2 of 3 · mean reward 0.5"
    )
    assert batch is not None
    batch.n_planned, batch.status = 0, "paused"
    assert "░ 3/– · Wordle · paused".replace("–", UNKNOWN) in line_text(progress_line(batch, 80, now=0.0))  # noqa: RUF001
    assert line_text(progress_line(None, 80, now=0.0)) == ""
    store = error_store()
    shown = line_text(progress_line(store.batch_registry.active(), 80, now=0.0, lost=store.all_nodes_lost))
    assert "✗ node lost" in shown and "time left" not in shown


def test_the_progress_line_counts_errors_apart() -> None:
    batch = BatchRun("b", env="Wordle", n_done=12, n_planned=20, n_rated=6, n_success=6, n_errors=6)
    assert line_text(progress_line(batch, 120, now=0.0)).endswith("success 6 of 6 · 6 errors")
    batch.n_rated, batch.n_success, batch.n_errors = 0, 0, 1
    shown = line_text(progress_line(batch, 120, now=0.0))
    assert shown.endswith("1 error")
    assert "success" not in shown


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    ("counts", "text", "tone"),
    [
        (WorkerCounts(n=2), "2 workers", "plain"),
        (WorkerCounts(starting=1), "1 worker starting", "plain"),
        (WorkerCounts(n=3, starting=1, lost=2), "3 workers, 1 starting, 2 lost", "warn"),
    ],
)
def test_the_progress_line_has_the_numbers_of_workers_and_prefers_those_of_lost_ones(
    counts: WorkerCounts, text: str, tone: str, width: int
) -> None:
    store = busy_store()
    store.apply_events([live(progress(seq=99, workers=counts))])
    line = progress_line(store.batch_registry.active(), width, now=0.0)
    shown = line_text(line)
    assert len(shown) <= width
    assert shown.index("time left") < (shown.index(text) if text in shown else width)
    if width == 120 or (counts.lost and width == 80):
        assert next(cell.tone for cell in line if cell.text == text) == tone
    if counts != WorkerCounts(n=2) and width > 60:
        assert f"time left 3:21 · {text}" in shown
    store.apply_events([live(progress(seq=100))])
    assert "worker" not in line_text(progress_line(store.batch_registry.active(), width, now=0.0))


def test_the_progress_line_shows_the_wait_for_a_server() -> None:
    store = busy_store()
    waiting = progress(waiting_for="http://me:hunter22@h:1: \x1b[2Jrefused", waiting_s=42.0, seq=99)
    store.apply_events([live(waiting)])
    shown = line_text(progress_line(store.batch_registry.active(), 200, now=0.0))
    assert "3/10 · Wordle · waiting for the server, 42 s left · success 2 of 3" in shown
    assert "[2Jrefused" in shown and "\x1b" not in shown and "hunter22" not in shown
    store.apply_events([live(progress(seq=100))])
    assert "time left 3:21" in line_text(progress_line(store.batch_registry.active(), 200, now=0.0))


def test_the_episode_line_shows_the_watched_episode() -> None:
    store = busy_store()
    running = store.running_episodes()[0]
    shown = line_text(episode_line(store, running, 120))
    assert shown == "Wordle task 3 · ▶ running · round 2 · reward 0.5 · oracle (no model) · 2.5 s · upstream"
    running.paused, running.n_missing = True, 2
    assert "‖ paused · round 2 · reward 0.5 · oracle (no model) · 2 items missing" in line_text(
        episode_line(store, running, 120)
    )
    failed = episode(0, outcome="error", error_type="EnvError", model="qwen", mode="compat")
    shown = line_text(episode_line(store, failed, 120))
    assert "! error: EnvError" in shown
    assert "oracle qwen" in shown
    assert "AgentGym's rules (compat)" in shown
    assert line_text(episode_line(store, None, 120)) == "no episode running"
    shown = line_text(episode_line(RunStore(), episode(0, n_steps=0, outcome=None, duration_s=None), 200))
    assert "running" in shown and "ms" not in shown, "before its first step it has no duration"
    shown = line_text(episode_line(store, episode(0, env="E" * 60, outcome="error", error_type="T" * 60), 70))
    assert "E…" in shown and "! error: T" in shown


def test_hostile_text_is_visible_and_harmless() -> None:
    store = hostile_store()
    shown = line_text(status_line(store, "here", 200))
    assert "␛[2J" in shown
    assert "\x1b" not in shown

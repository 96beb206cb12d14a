"""The command ends when interrupted at any time, and when an environment never returns."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import pytest

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.cli import main, terminal
from runner.cli.terminal import SignalHandler
from tests.support.batches import resolved_batch
from tests.support.command import environ_with_environments, run_agentgym

pytestmark = pytest.mark.long


def make_batch(workspace: Workspace) -> Batch:
    return Batch(resolved_batch(env="Maze", agent="oracle", repeat=50), workspace)


@pytest.mark.parametrize(("env", "outcome"), [("Lingering", "timeout"), ("Blocking", "timeout")])
def test_the_process_exits_although_an_environment_hangs(tmp_path: Path, env: str, outcome: str) -> None:
    environ = environ_with_environments(tmp_path, env)
    started = time.monotonic()
    completed = run_agentgym(
        tmp_path, "--run", env, "--agent", "random", "--max-duration", "0.2", "--json", environ=environ
    )  # fmt: skip
    assert time.monotonic() - started < 20
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["batches"][0]["outcomes"] == {outcome: 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_before_the_first_batch_ends_the_run(number: signal.Signals) -> None:
    handler = SignalHandler()
    with handler.installed(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_during_a_batch_an_interrupt_cancels_it(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    handler, batch = SignalHandler(), make_batch(workspace)
    with handler.installed(), handler.forwarding_to(batch):
        signal.raise_signal(signal.SIGINT)
        result = batch.run()
    assert (result.status, result.n_episodes, handler.received) == ("cancelled", 0, True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "press Ctrl-C again to stop immediately" in capsys.readouterr().err


def test_an_interrupt_between_batches_cancels_the_next_one(workspace: Workspace) -> None:
    handler = SignalHandler()
    with handler.installed():
        with handler.forwarding_to(make_batch(workspace)):
            pass
        signal.raise_signal(signal.SIGINT)
        next_batch = make_batch(workspace)
        with handler.forwarding_to(next_batch):
            assert next_batch.run().status == "cancelled"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_message_of_an_interrupt_is_printed_before_the_run_ends(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, ended, messages = SignalHandler(), threading.Event(), []

    def print_slowly(text: str) -> None:
        messages.append((text, ended.wait(0.3)))

    monkeypatch.setattr(terminal, "print_stderr", print_slowly)
    with handler.installed(), handler.forwarding_to(make_batch(workspace)):
        signal.raise_signal(signal.SIGINT)
    ended.set()
    assert messages == [("Stopping after the current steps; press Ctrl-C again to stop immediately.", False)]


def test_a_blocked_terminal_does_not_prevent_the_end_of_a_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, unblocked, messages = SignalHandler(message_timeout_s=0.05), threading.Event(), []
    monkeypatch.setattr(terminal, "print_stderr", lambda text: messages.append(unblocked.wait(10)))
    with handler.installed(), handler.forwarding_to(make_batch(workspace)):
        signal.raise_signal(signal.SIGINT)
    assert handler.received and not messages
    unblocked.set()


def test_an_interrupt_outside_a_run_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.cli.list_envs.list_environments", interrupted)
    assert main(["--list-envs"]) == 130

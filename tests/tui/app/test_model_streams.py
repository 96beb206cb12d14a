"""The live screen streams a model's answer and shows the fallback endpoint when the first one dies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.serve.mock_llm.app import ScriptResponder
from runner.serve.mock_llm.script import Behavior, ScriptedReply
from runner.store.journal import read_journal
from tests.support.command import REPOSITORY
from tests.support.console.launch import CONSOLE, NODE, node_cleanup, select_environment
from tests.support.model_server import ModelServer
from tests.support.node_process import COMMAND
from tests.support.terminal import Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

TOKEN_S = 0.05
"""Seconds between two chunks of an answer; long answers never end during the test."""

PROFILE = """
id: streams
episode: {{ max_rounds: 3 }}
agent: {{ api_endpoint: "{url}/v1/chat/completions", model: scripted, local_fallback: small, format: react }}
environments:
  lightweight:
    - name: Wordle
"""


@contextmanager
def run_gateway(script: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a model server in a separate process; yield its URL and the process."""
    command = [COMMAND, "serve-model", "--port", "0", "--model", "scripted", "--script", str(script)]
    with subprocess.Popen(
        [*command, "--token-latency", str(TOKEN_S)],
        stdout=subprocess.PIPE,
        text=True,
        env=terminal_environ(PYTHONPATH=str(REPOSITORY)),
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[0], process
        finally:
            process.kill()


def test_an_answer_is_streamed_and_the_fallback_is_shown_when_its_endpoint_dies(tmp_path: Path) -> None:
    script, profile, data_dir = tmp_path / "script", tmp_path / "profile.yaml", tmp_path / "data"
    replies = ["Thought: quick.\nAction: crane", f"Thought: {'slowly ' * 2_000}\nAction: crane"]
    script.write_text("".join(json.dumps({"content": reply}) + "\n" for reply in replies))
    responder = ScriptResponder([ScriptedReply(content="Thought: " + "instead " * 2_000)])
    fallback_server = ModelServer(responder, models=["small"], behavior=Behavior(token_latency_s=TOKEN_S))
    with run_gateway(script) as (url, process), fallback_server as fallback, node_cleanup(data_dir):
        profile.write_text(PROFILE.format(url=url))
        command = [CONSOLE, "launch", "--config", str(profile), "--data-dir", str(data_dir), "--node", NODE]
        env = terminal_environ(OLLAMA_HOST=fallback.url, PYTHONPATH=str(REPOSITORY))
        with Terminal(*command, cwd=tmp_path, env=env) as terminal:
            terminal.wait_for(lambda: any(f"model gateway {how}" in terminal.text for how in ("up", "slow")), 60)
            select_environment(terminal, "Wordle")
            terminal.send("r")
            terminal.wait_for("slowly slowly")
            terminal.wait_for("step 1 · gateway · ≈")
            [journal] = data_dir.glob("runs/*/*.journal.jsonl")
            assert len(read_journal(journal).steps) == 1
            assert "↷ ollama" not in terminal.text
            process.kill()
            terminal.wait_for("Wordle: gateway failed")
            terminal.wait_for("instead instead")
            terminal.wait_for("step 1 · ↷ ollama · ≈")
            terminal.wait_for("↷ model ollama ")
            assert "slowly" not in terminal.text
            assert len(read_journal(journal).steps) == 1

"""Notifications about ended batches: a real command and a real webhook."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from runner.batch.result import BatchResult, BatchStats
from runner.batch.spec import BatchSpec
from runner.config import NotifySettings, Profile, load_profile
from runner.errors import ConfigError
from runner.publish.notifier import Notifier

ENVIRON = {"PATH": "/usr/bin:/bin", "LAB_TOKEN": "s3cret-of-the-lab", "BATCH_TOKEN": "t0ken-of-the-hook"}
HOSTILE = "x'; touch /tmp/owned; \x1b[2J $(id)"


class Webhook(ThreadingHTTPServer):
    """Answers with the statuses in turn, then with 200, and keeps what it received; ``endless``: without an end."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.endless = False
        self.received: list[tuple[str, str | None, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/path-secret"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Webhook)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.received.append((self.path, self.headers["Authorization"], body))
        self.send_response(server.statuses.pop(0) if server.statuses else 200)
        self.send_header("Content-Length", "9" if server.endless else "0")
        self.end_headers()
        if server.endless:
            self.rfile.read(1)  # until the client closes the connection

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    server = Webhook()
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


def make_result(**fields: Any) -> BatchResult:  # noqa: ANN401
    spec = BatchSpec(env="Maze", agent="oracle", repeat=3)
    result = BatchStats().result(
        spec, batch_id="b1", battery_id=None, status="interrupted", data_label="", duration_s=2.0
    )
    return msgspec.structs.replace(result, **{"interruption": HOSTILE, **fields})


def deliver(caplog: pytest.LogCaptureFixture, n: int = 1, **settings: Any) -> str:  # noqa: ANN401
    """Deliver ``n`` notifications; return the log."""
    caplog.set_level(logging.INFO)
    profile = Profile(id="p1", notify=NotifySettings(**settings))
    notifier = Notifier(profile, "node-7", ENVIRON, retry_delays_s=(0.01, 0.01))
    for _ in range(n):
        notifier.notify(make_result())
    notifier.close()
    assert "s3cret" not in caplog.text
    assert "t0ken" not in caplog.text
    assert "path-secret" not in caplog.text
    return caplog.text


def python(folder: Path, code: str) -> tuple[str, ...]:
    script = folder / "hook.py"
    script.write_text(f"import json, os, sys, time\n{code}\n")
    return sys.executable, str(script)


def test_the_command_gets_the_batch_on_standard_input_and_no_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "print(json.dumps([json.load(sys.stdin), dict(os.environ), sys.argv[1:]]), file=open(sys.argv[1], 'w'))"
    target = tmp_path / "got.json"
    deliver(caplog, command=(*python(tmp_path, code), str(target)), pass_env=("BATCH_TOKEN", "UNSET"))
    got, environ, arguments = json.loads(target.read_text())
    assert (got["event"], got["node"], got["profile"]) == ("batch.ended", "node-7", "p1")
    assert (got["batch_id"], got["env"], got["status"], got["n_planned"]) == ("b1", "Maze", "interrupted", 3)
    assert (got["interruption"], got["currency"]) == (HOSTILE, "USD")
    assert arguments == [str(target)]
    assert {name: environ.get(name) for name in ENVIRON} == ENVIRON | {"LAB_TOKEN": None}


def test_the_output_of_a_command_that_fails_is_logged_safely(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = "print('x' * 100_000)\nprint('\\x1b[2J s3cret-of-the-lab done')\nsys.exit(7)"
    log = deliver(caplog, command=python(tmp_path, code))
    assert "␛[2J *** done" in log
    assert "ended with code 7" in log
    assert len(log) < 5000


def test_a_command_that_hangs_is_ended_with_its_children_and_one_that_is_missing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '60'])\nprint('started', flush=True)\ntime.sleep(60)"
    started = time.monotonic()
    profile = Profile(id="p1", notify=NotifySettings(command=python(tmp_path, code), timeout_sec=1.5))
    caplog.set_level(logging.INFO)
    notifier = Notifier(profile, "n", ENVIRON)
    notifier.notify(make_result())
    assert time.monotonic() - started < 1.0
    assert notifier._queue.close(20)
    assert "was ended after 1.5 s" in caplog.text
    assert "started" in caplog.text
    assert "cannot be started: No such file or directory" in deliver(caplog, command=(str(tmp_path / "no-hook"),))


def test_the_webhook_gets_the_batch_with_its_token_after_failed_attempts(
    webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    webhook.statuses = [503, 429]
    log = deliver(caplog, 2, url=webhook.url, token_env="BATCH_TOKEN")
    assert [path for path, _, _ in webhook.received] == ["/services/path-secret"] * 4
    assert {token for _, token, _ in webhook.received} == {"Bearer t0ken-of-the-hook"}
    assert [body["batch_id"] for _, _, body in webhook.received] == ["b1"] * 4
    assert "not delivered" not in log


@pytest.mark.parametrize(("statuses", "n_requests"), [([500] * 3, 3), ([404], 1), ([302], 1)])
def test_a_webhook_that_refuses_is_logged_without_its_url(
    webhook: Webhook, caplog: pytest.LogCaptureFixture, statuses: list[int], n_requests: int
) -> None:
    webhook.statuses = list(statuses)
    assert f"answered with status {statuses[0]}" in deliver(caplog, url=webhook.url)
    assert len(webhook.received) == n_requests


@pytest.mark.parametrize(("status", "n_requests"), [(200, 1), (500, 2)])
def test_an_answer_of_a_webhook_that_never_ends_is_its_status(
    webhook: Webhook, caplog: pytest.LogCaptureFixture, status: int, n_requests: int
) -> None:
    webhook.endless, webhook.statuses = True, [status]
    assert "delivered: status 200" in deliver(caplog, url=webhook.url, timeout_sec=10.0)
    assert len(webhook.received) == n_requests


def test_a_webhook_that_is_gone_or_lacks_its_token_is_logged(
    webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    assert "not delivered: " in deliver(caplog, url="http://127.0.0.1:9/path-secret", timeout_sec=5.0)
    assert "MISSING for its token is not set" in deliver(caplog, url=webhook.url, token_env="MISSING")
    assert webhook.received == []


def test_the_settings_show_neither_the_url_nor_the_arguments() -> None:
    settings = NotifySettings(command=("hook", "--key=path-secret"), url="https://x/path-secret")
    for text in (repr(settings), repr(Profile(id="p", notify=settings)), repr(settings.__rich_repr__())):
        assert "path-secret" not in text


def test_an_invalid_url_is_an_error_of_the_profile_that_does_not_quote_it(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("id: p\nnotify:\n  url: ftp://hooks/path-secret\n")
    with pytest.raises(ConfigError, match=r"notify\.url: expected an http:// or https:// URL") as caught:
        load_profile(str(file), environ={}, cwd=tmp_path)
    assert "path-secret" not in str(caught.value)

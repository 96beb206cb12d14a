"""A real headless Chromium, driven by its DevTools protocol over its files 3 and 4, without a port."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import IO, Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


class Page:
    """A page of the browser; ``events`` has the messages of the browser that answer no call."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers, self._unread = commands, answers, b""
        self._n_calls, self._session = 0, dict[str, str]()
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session["sessionId"] = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> Any:  # noqa: ANN401 - any JSON
        self._n_calls += 1
        command = {"id": self._n_calls, "method": method, "params": params, **self._session}
        self._commands.write(json.dumps(command).encode() + b"\0")
        while (answer := self._read()).get("id") != self._n_calls:
            self.events.append(answer)
        return answer["result"]

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def value(self, expression: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = self._answers.read(1 << 16)
            assert data, "the browser has ended"
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def open_browser() -> Iterator[Page]:
    assert CHROMIUM is not None
    with TemporaryDirectory() as profile:
        command = (
            "bash",
            "-c",
            'exec "$@" 3<&0 4>&1 >/dev/null',
            "bash",
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={profile}",
        )
        with Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, bufsize=0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield Page(process.stdin, process.stdout)
            finally:
                process.terminate()
                process.wait(timeout=30)

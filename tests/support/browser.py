"""A real headless Chromium, driven by its DevTools protocol over a pair of pipes, without a port or a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


class Page:
    """``events`` are the messages of the browser that answer no call, such as those of its console and network."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, os.fdopen(answers, "rb")
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(command | ({"sessionId": self._session} if self._session else {})).encode())
        os.write(self._commands, b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def value(self, expression: str) -> Any:  # noqa: ANN401 - any JSON
        """Return what an expression in the page has as its value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message


@contextmanager
def open_browser() -> Iterator[Page]:
    assert CHROMIUM is not None
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    # the browser reads commands from file 3 and writes answers to file 4
    files = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
    with TemporaryDirectory() as profile:
        command = ("bash", "-c", files, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={profile}")
        with subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL) as process:
            os.close(theirs_in)
            os.close(theirs_out)
            try:
                yield Page(ours_out, ours_in)
            finally:
                process.terminate()
                process.wait(timeout=30)
                os.close(ours_out)

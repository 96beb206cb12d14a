"""TensorZero's gateway in a separate process, so that a test can kill it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = 30.0


class Gateway:
    """The gateway embedded in the ``tensorzero`` distribution, on a free loopback port.

    It has no database and only the OpenAI-compatible route: neither ``/health`` nor ``/feedback``.

    Args:
        folder: folder of its configuration and log.
        api_base: URL of the OpenAI-compatible server behind every model, including ``/v1``.
        models: model names, forwarded unchanged.
    """

    def __init__(self, folder: Path, api_base: str, models: tuple[str, ...] = ("qwen35_9b",)) -> None:
        self.folder = folder
        self.origin = ""
        self._config = "[gateway]\nobservability.enabled = false\n" + "".join(
            f'[models.{model}]\nrouting = ["local"]\n[models.{model}.providers.local]\ntype = "openai"\n'
            f'api_base = "{api_base}/"\nmodel_name = "{model}"\napi_key_location = "none"\n'
            for model in models
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL as written in the default profile; the gateway itself serves another path."""
        return f"{self.origin}/v1/chat/completions"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> Self:
        config, log = self.folder / "tensorzero.toml", self.folder / "gateway.log"
        config.write_text(self._config)
        reading, writing = os.pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.tensorzero_gateway", str(config), str(writing)],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
            )
        os.close(writing)
        try:
            ready, _, _ = select.select([reading], [], [], START_TIMEOUT_S)
            base_url = os.read(reading, 200).decode() if ready else ""
        finally:
            os.close(reading)
        assert base_url, f"the gateway did not start:\n{log.read_text(errors='replace')[-2000:]}"
        self.origin = "{0.scheme}://{0.netloc}".format(urlsplit(base_url))
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(START_TIMEOUT_S)
            self._process = None


def _serve(config: str, ready_fd: int) -> None:
    from tensorzero import _start_http_gateway

    gateway: Any = _start_http_gateway(
        config_file=config, clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
    )
    os.write(ready_fd, gateway.base_url.encode())
    os.close(ready_fd)
    parent = os.getppid()
    while os.getppid() == parent:  # ends with the test process
        time.sleep(1)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))

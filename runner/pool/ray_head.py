"""``python -m runner.pool.ray_head``: a Ray cluster of this machine that lives as long as its standard input.

It runs in a process of its own, so that its environment contains no secrets, Ctrl-C does not reach it, and the kernel
ends its processes together with it. It writes one line of JSON to its standard output when the cluster is ready.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

from runner.errors import ConfigError, catch_foreign
from runner.util.child_process import ChildProcess, describe_end
from runner.util.display_text import mask, one_line, public_variables

STORE_BYTES = 200 << 20
"""Size of the cluster's object store; frames of episodes are small and are not stored there."""
HEAD_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's variable with the seconds that a process waits for the head before it ends; the cluster keeps the default."""
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
"""Maximum seconds from the end of the standard input to the end of the process."""


class RayHead:
    """The process of a cluster of this machine; ``key_names`` are the variables that contain API keys."""

    def __init__(self, environ: Mapping[str, str], key_names: Iterable[str] = ()) -> None:
        command = [sys.executable, "-m", __name__]
        pipe = subprocess.PIPE
        self._process = ChildProcess(command, head_environ(environ, key_names), stdin=pipe, stdout=pipe)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> str:
        """Return the address of the cluster; raises ``ConfigError`` with Ray's message."""
        assert self._process.stdout is not None
        answer: dict[str, str] = {}
        limit = threading.Timer(START_TIMEOUT_S, self._process.kill)
        limit.start()
        for line in self._process.stdout:  # Ray may write lines of its own
            with suppress(ValueError):
                answer = dict(json.loads(line))
                break
        limit.cancel()
        if "address" in answer:
            return answer["address"]
        self.close()
        reason = answer.get("error", f"its process {describe_end(self._process.returncode)}")
        raise ConfigError(f"Ray did not start a cluster of this machine: {one_line(mask(reason), 500)}")

    def close(self) -> None:
        """Wait for the end of the processes of the cluster."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.end(END_TIMEOUT_S)


def head_environ(environ: Mapping[str, str], key_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables of a cluster: those without secrets, and Ray's own, without usage reports."""
    own = {name: value for name, value in environ.items() if name.startswith("RAY_")}
    safe = {**public_variables(environ, key_names), **own}
    safe.pop(HEAD_VARIABLE, None)
    return {**safe, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def main() -> None:
    import ray

    def report(exc: BaseException) -> None:
        print(json.dumps({"error": str(exc)}), flush=True)  # noqa: T201
        sys.exit(1)

    with catch_foreign(report):
        context = ray.init(
            address="local", include_dashboard=False, log_to_driver=False, object_store_memory=STORE_BYTES
        )
        print(json.dumps({"address": context.address_info["gcs_address"]}), flush=True)  # noqa: T201
    sys.stdin.buffer.read()
    ray.shutdown()
    # Without a head, Ray leaves processes for a minute. They are in the group of this one, which starts a session.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

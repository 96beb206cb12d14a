"""Run commands in forks of one process that has already imported their modules, which saves most of their time.

A command is still a separate process with its own streams, environment variables, working directory and exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 100


class CommandServer:
    """Process that forks a command per request."""

    def __init__(self, command: str, environ: Mapping[str, str]) -> None:
        """Start the process; ``command`` is the path of the console script, shown in its usage."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.command_server", command],
            cwd=REPOSITORY,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, cwd: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and return its output and exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
            request = {"cwd": str(cwd), "arguments": arguments, "environ": dict(environ)}
            request |= {"stdout": str(stdout), "stderr": str(stderr)}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
            assert reply, "the command server ended"
            return subprocess.CompletedProcess(arguments, int(reply), stdout.read_text(), stderr.read_text())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@cache
def command_server(command: str) -> CommandServer:
    """Return the server of this test process; it starts on the first call."""
    server = CommandServer(command, {"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    atexit.register(server.close)
    return server


def _serve(command: str) -> None:
    _import_command_modules()
    from runner.cli import main

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become_command(command, request)
            sys.exit(main(request["arguments"]))
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _import_command_modules() -> None:
    import hydra  # noqa: F401
    import omegaconf  # noqa: F401
    import perfetto.protos.perfetto.trace.perfetto_trace_pb2  # noqa: F401
    import rich.progress
    import rich.table  # noqa: F401

    import runner.agents.oracle
    import runner.cli.dispatch
    import runner.cli.dry_run
    import runner.cli.list_envs
    import runner.cli.preflight
    import runner.cli.results
    import runner.cli.run
    import runner.cli.run_session
    import runner.envs.maze  # noqa: F401


def _become_command(command: str, request: dict[str, Any]) -> None:
    for number, path in enumerate((os.devnull, request["stdout"], request["stderr"])):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = [command, *request["arguments"]]
    sys.path[0] = str(Path(command).parent)
    signal.alarm(TIMEOUT_S)  # ends a command that hangs


if __name__ == "__main__":
    _serve(sys.argv[1])

"""The command line as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

COMMAND = str(Path(sys.executable).with_name("agentgym-runner"))
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "AGENTGYM_DATA_DIR": "data"}
REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120.0


def run_agentgym(
    cwd: Path, *options: str, environ: dict[str, str] | None = None, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the installed command to its end, by the command ``prefix`` if there is one."""
    return subprocess.run(
        [*prefix, COMMAND, *options],
        cwd=cwd,
        env=ENVIRON | (environ or {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


class Started(NamedTuple):
    """A running command and its standard streams."""

    process: subprocess.Popen[str]
    output: IO[str]
    errors: IO[str]


@contextmanager
def start_agentgym(
    cwd: Path, *options: str, environ: dict[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[Started]:
    """Run the installed command during the block, for at most ``LIMIT_S`` seconds."""
    command, environ = [*prefix, COMMAND, *options], ENVIRON | (environ or {})
    with subprocess.Popen(
        command, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        watchdog = threading.Timer(LIMIT_S, run.kill)
        watchdog.start()
        try:
            yield Started(run, cast(IO[str], run.stdout), cast(IO[str], run.stderr))
        finally:
            watchdog.cancel()
            run.kill()


def limited_command(n_files: int, *command: str, soft: int | None = None) -> list[str]:
    """Return a command that runs with a hard limit of ``n_files`` open files, and the same soft limit by default."""
    limits = f"ulimit -Sn {soft or n_files} && ulimit -Hn {n_files}"
    return ["bash", "-c", f'{limits} && exec "$@"', "bash", *command]


def run_shell(cwd: Path, script: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a bash script that finds this checkout's ``agentgym-runner``."""
    path = {"PATH": f"{Path(COMMAND).parent}:{ENVIRON['PATH']}"}
    return run_agentgym(cwd, environ=path | (environ or {}), prefix=["bash", "-c", script])


def environ_with_environments(
    folder: Path, *names: str, envs: dict[str, str] | None = None, agents: dict[str, str] | None = None
) -> dict[str, str]:
    """Return variables that make plugins appear installed: ``names`` from ``tests.support.rude_environments``."""
    metadata = folder / "rude-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n")
    points = "".join(f"{name} = tests.support.rude_environments:{name}\n" for name in names)
    points += "".join(f"{name} = {value}\n" for name, value in (envs or {}).items())
    points += "[agentgym.agents]\n" + "".join(f"{name} = {value}\n" for name, value in (agents or {}).items())
    (metadata / "entry_points.txt").write_text(f"[agentgym.envs]\n{points}")
    return {"PYTHONPATH": f"{folder}:{REPOSITORY}"}

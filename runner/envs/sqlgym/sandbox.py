"""Runs queries in worker processes (``worker.py``) and evaluates their results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import msgspec

from runner.envs.sqlgym import worker
from runner.envs.sqlgym.tasks import Database
from runner.errors import EnvironmentFault

ENGINE_FAILED = "The query was stopped because the database engine failed or ran out of memory."
_WORKER_TIMEOUT_S = worker.ALARM_S + worker.GOLD_LIMIT_S + worker.ALARM_S + 20
_worker_slots = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
"""Limit of concurrent queries, since each query may keep a CPU busy until its time limit."""
_COMMAND = (sys.executable, "-I", "-S", str(Path(worker.__file__)))


class Verdict(NamedTuple):
    """Result of a query: the text for the agent, and whether the query's rows equal those of the gold query.

    ``solved`` is None if the query works and the gold query has an error.
    """

    observation: str
    solved: bool | None


def evaluate(database: Database, sql: str, gold: str) -> Verdict:
    """Run an untrusted query and compare its rows with those of the gold query.

    Raises:
        EnvironmentFault: if the database cannot be opened or the gold query takes too long; the message hides the gold
            query.
    """
    request = {"sql": sql, "gold": gold, **msgspec.structs.asdict(database)}
    done = _run(json.dumps(request).encode())  # unlike msgspec, json accepts lone surrogates
    match [json.loads(line) for line in done.stdout.splitlines()]:
        case ["ready", str() as observation, bool() as solved] | [
            "ready",
            str() as observation,
            "known",
            bool() as solved,
        ]:
            return Verdict(observation, solved)
        case ["ready", str() as observation, "known"]:
            return Verdict(observation, solved=False)
        case ["ready", str() as observation, "failed"]:
            return Verdict(observation, solved=None)
        case ["ready"]:
            timed_out = done.returncode == -signal.SIGALRM
            return Verdict(worker.STOPPED if timed_out else ENGINE_FAILED, solved=False)
        case ["ready", str()]:
            limit = f"{worker.GOLD_LIMIT_S:.0f} s"
            raise EnvironmentFault(f"The gold query of this task took longer than {limit} or ran out of memory")
    raise EnvironmentFault(f"SQLGym could not open the database of this task: {_last_line(done.stderr)}")


def _run(request: bytes) -> subprocess.CompletedProcess[bytes]:
    # in its own process group, so that Ctrl-C does not reach it; its alarm ends it
    try:
        with _worker_slots:
            return subprocess.run(
                _COMMAND, input=request, capture_output=True, timeout=_WORKER_TIMEOUT_S, check=False, process_group=0
            )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EnvironmentFault(f"SQLGym could not run a query: {type(exc).__name__}") from exc


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").split("\n")
    return next((line[:200] for line in reversed(lines) if line), "no error output")

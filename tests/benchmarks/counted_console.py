"""The console as ``agentgym-tui watch --nats URL``, which at its end writes down what it has counted.

python -m tests.benchmarks.counted_console URL FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from agentgym_tui.app.console import Console
from agentgym_tui.sessions.bus_session import BusSession
from agentgym_tui.sessions.node_launcher import LaunchOptions
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.terminal.run import run_console


class Counted(msgspec.Struct):
    """What a console has seen: live items, and messages of which it said that they were gone before they came."""

    n_items: int
    n_gone: int


def counted(store: RunStore) -> Counted:
    return Counted(store.n_items, sum(note.n for note in store.notices))


if __name__ == "__main__":
    session = BusSession(LaunchOptions(None, None, None), url=sys.argv[1])
    code = run_console(Console(session), session)
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(counted(session.store)))
    sys.exit(code)

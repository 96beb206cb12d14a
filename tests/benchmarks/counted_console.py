"""``agentgym-tui watch --nats URL`` that writes its message counts to a file when it exits.

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


class ConsoleCounts(msgspec.Struct):
    """Received live items, and messages that were deleted from their stream before they were read."""

    n_items: int
    n_missed: int


def count(store: RunStore) -> ConsoleCounts:
    return ConsoleCounts(store.n_items, sum(note.n for note in store.notices))


if __name__ == "__main__":
    session = BusSession(LaunchOptions(None, None, None), url=sys.argv[1])
    code = run_console(Console(session), session)
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(count(session.store)))
    sys.exit(code)

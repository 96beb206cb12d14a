"""``agentgym-tui watch --nats URL`` that writes its message counts to a file when it exits.

python -m tests.benchmarks.counted_console URL FILE
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from agentgym_tui.app import Console
from agentgym_tui.sessions import bus_session
from agentgym_tui.sessions.bus_session import BusSession
from agentgym_tui.state.run_store import Received, RunStore, join_live
from agentgym_tui.terminal import run_console
from runner.client.node_folder import LaunchOptions
from runner.events.codec import LiveRow
from runner.subscribe.messages import SubscriptionItem

SAMPLE_INTERVAL_S: Final = 0.1


class ConsoleCounts(msgspec.Struct):
    """What a console received.

    Attributes:
        n_items: live items.
        n_messages: live messages.
        n_missed: messages that the console reports as lost.
        samples: times by the system's monotonic clock, and the number of live items received until then.
    """

    n_items: int
    n_messages: int
    n_missed: int
    samples: list[tuple[float, int]]


class Counter:
    """Counts the live messages that a console receives, before those of one subject are joined."""

    n_messages = 0

    def join_live(self, messages: Iterable[SubscriptionItem]) -> Iterator[Received]:
        received = list(messages)
        self.n_messages += sum(isinstance(getattr(each, "decoded", each), LiveRow) for each in received)
        return join_live(received)


def _sample(store: RunStore, samples: list[tuple[float, int]]) -> None:
    while True:
        samples.append((time.perf_counter(), store.n_items))
        time.sleep(SAMPLE_INTERVAL_S)


def main(url: str, path: str) -> int:
    session = BusSession(LaunchOptions(None, None, None), url=url)
    store, samples, counter = session.store, list[tuple[float, int]](), Counter()
    bus_session.__dict__["join_live"] = counter.join_live
    threading.Thread(target=_sample, args=(store, samples), daemon=True).start()
    code = run_console(Console(session), session)
    counts = ConsoleCounts(store.n_items, counter.n_messages, store.notice_list.n_lost, samples)
    Path(path).write_bytes(msgspec.json.encode(counts))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

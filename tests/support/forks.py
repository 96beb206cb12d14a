"""Run tests in processes that are forked after one collection.

Plugins that start processes pay for the imports and the collection in each of them, 6 s of CPU here. ``--forks 4`` runs
the collected tests in four processes, each of which takes a few tests of one file at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import chain, groupby, islice, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Final

import pytest

Location = tuple[str, int | None, str]

FORK: Final = multiprocessing.get_context("fork")
CHUNK: Final = 10
"""Maximum number of tests that a process takes at once: more would leave the others idle at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forked processes")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.forks and not config.option.collectonly:
        config.pluginmanager.register(Forks(config.option.forks))


class Forks:
    """Replaces the loop over the tests.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run each test in one of the processes and report it here, so that other plugins see every result."""
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        if (reporter := session.config.pluginmanager.get_plugin("terminalreporter")) is not None:
            reporter.showfspath = False
        chunks = list(_chunks(session.items))
        queue: SimpleQueue[int | None] = FORK.SimpleQueue()
        for index in (*range(len(chunks)), *[None] * self._count):
            queue.put(index)
        folder = Path(tempfile.mkdtemp(prefix="tests-"))
        processes = []
        try:
            receivers = []
            for number in range(self._count):
                receiver, sender = FORK.Pipe(duplex=False)
                worker = Worker(session, chunks, queue, sender, folder / str(number))
                processes.append(FORK.Process(target=worker.run))
                processes[-1].start()
                sender.close()
                receivers.append(receiver)
            _report(session, receivers)
        finally:
            for process in processes:
                process.terminate()
                process.join()
            if not session.testsfailed:
                shutil.rmtree(folder, ignore_errors=True)
        return True


def _chunks(items: list[pytest.Item]) -> Iterator[list[pytest.Item]]:
    for _, group in groupby(items, key=lambda item: item.path):
        while chunk := list(islice(group, CHUNK)):
            yield chunk


def _report(session: pytest.Session, receivers: list[Connection]) -> None:
    """Report what the processes send until each of them has taken its last test."""
    hook, config = session.config.hook, session.config
    running: dict[Connection, tuple[str, Location]] = {}
    while receivers:
        for receiver in wait(receivers):
            assert isinstance(receiver, Connection)
            try:
                kind, value = receiver.recv()
            except EOFError:
                kind, value = "end", None
                hook.pytest_runtest_logreport(report=_death(*running[receiver]))
            if kind == "start":
                running[receiver] = value
                hook.pytest_runtest_logstart(nodeid=value[0], location=value[1])
            elif kind == "report":
                hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=value))
            elif kind == "finish":
                hook.pytest_runtest_logfinish(nodeid=value[0], location=value[1])
            else:
                receivers.remove(receiver)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)


def _death(nodeid: str, location: Location) -> pytest.TestReport:
    text = "its process died, and what it had taken was not run"
    return pytest.TestReport(nodeid, location, keywords={}, outcome="failed", longrepr=text, when="call")


class Worker:
    """One process, which takes tests from a queue and sends what happens as pairs of a kind and its value.

    Args:
        session: the session that collected the tests.
        chunks: tests that one process takes at once.
        queue: indices of the chunks that no process has taken; None for each process at the end.
        sender: receives the pairs.
        folder: parent of the temporary folders of the tests.
    """

    def __init__(
        self,
        session: pytest.Session,
        chunks: list[list[pytest.Item]],
        queue: SimpleQueue[int | None],
        sender: Connection,
        folder: Path,
    ) -> None:
        self._config = session.config
        self._chunks = chunks
        self._queue = queue
        self._sender = sender
        self._folder = folder

    def run(self) -> None:
        """Run tests until the queue is empty, then leave without waiting for threads."""
        plugins = self._config.pluginmanager
        self._folder.mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(self._folder)
        plugins.unregister(name="terminalreporter")
        if (capture := plugins.get_plugin("capturemanager")) is not None:
            # the files of captured output are shared with the other processes until they are made anew
            capture.stop_global_capturing()
            capture.start_global_capturing()
        plugins.register(self)
        for item, after in pairwise(chain(self._taken(), [None])):
            assert item is not None
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        self._sender.send(("end", None))
        os._exit(0)

    def _taken(self) -> Iterator[pytest.Item]:
        while (index := self._queue.get()) is not None:
            yield from self._chunks[index]

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._sender.send(("start", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._sender.send(("report", hook.pytest_report_to_serializable(config=self._config, report=report)))

    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> None:
        self._sender.send(("finish", (nodeid, location)))

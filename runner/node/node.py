"""A node from start to stop: lock, broker, publishing, playing, answering."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from runner import __version__
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.bus.address import BusAddress
from runner.bus.broker.broker import Broker
from runner.bus.errors import BusError
from runner.bus.rpc import serve
from runner.config import Profile
from runner.envs.placement import Choice, decide, entry_of
from runner.events.control import NodeHealth
from runner.events.durable import NodeStatus
from runner.events.subjects import control_subject
from runner.inference.models import Models
from runner.node.batch_queue import BatchQueue, queued_ids
from runner.node.batch_runner import Announce, Player
from runner.node.env_servers.manager import Servers
from runner.node.file_chunks import EpisodeFiles
from runner.node.handlers import Operations
from runner.node.health import Health
from runner.node.name_claim import refuse_taken_name
from runner.node.shutdown import end_playing, send_rest
from runner.node.state_lock import NodeFile, StateLock
from runner.node.tasks import kept_going
from runner.publish.event_recorder import Announcer, durable_names
from runner.publish.live_publisher import LivePublisher
from runner.publish.publisher import Publisher, Sink
from runner.publish.recovery import announce_complete

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at whether the node has become idle."""
ASKED_S = 60.0
"""Seconds for which a node that was asked something takes it that somebody looks."""
START_S = 15.0
"""Seconds for the own broker to answer."""


def _ignore(node_file: NodeFile) -> None:
    """Nobody asked."""


class Node:
    """The worker service of one state directory; ``run`` returns when it has stopped.

    Args:
        profile: what may be played and with which limits.
        data_dir: absolute.
        name: this node's name on the bus.
        egress: another broker that gets the events too; asked at each attempt to connect.
        idle_exit_s: leave by itself after so many seconds in which nothing ran, waited or was asked; None: never.
        on_serving: told once requests are answered.
    """

    def __init__(
        self,
        profile: Profile,
        data_dir: Path,
        name: str,
        *,
        egress: Callable[[], BusAddress | None],
        idle_exit_s: float | None = None,
        on_serving: Callable[[NodeFile], object] = _ignore,
    ) -> None:
        """Nothing is touched before ``run``."""
        self._profile = profile
        self._data_dir = data_dir
        self._name = name
        self._egress = egress
        self._idle_exit_s = idle_exit_s
        self._on_serving = on_serving
        self._servers = Servers(profile, data_dir / "logs")
        self._models = Models.of(profile.agent, os.environ)
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._drain = False
        self._status: NodeStatus = "starting"
        self._started = self._asked = time.monotonic()

    def stop(self, *, drain: bool = False) -> None:
        """Begin to stop; in the node's event loop, e.g. from a signal handler. A second call ends a drain."""
        self._drain = drain and not self._stopping.is_set()
        self._stopping.set()

    def interrupt(self) -> None:
        """As ``stop``; a node that stops already does so without waiting for steps and events any more."""
        if self._stopping.is_set() and not self._drain:
            self._at_once.set()
        self.stop()

    async def run(self) -> None:
        """Serve until told to stop.

        Raises:
            RunnerError: when the node cannot start: another one has the directory or the name, or the broker fails.
        """
        async with AsyncExitStack() as stack:
            lock = StateLock(self._data_dir)
            stack.callback(lock.release)
            workspace = Workspace(self._data_dir, node=self._name, profile=self._profile.id)
            stack.callback(workspace.close)
            await refuse_taken_name(self._name, workspace.boot, self._egress())
            queue = BatchQueue(self._data_dir / "queue.sqlite")
            stack.callback(queue.close)
            announcer = Announcer(workspace, durable_names(self._profile.nats), role="node")
            stack.callback(announcer.close)
            announce_complete(workspace, announcer, partial(queued_ids, self._data_dir / "queue.sqlite"))
            broker = Broker(
                self._data_dir,
                self._name,
                on_restart=lambda: lock.announce(self._node_file(workspace, broker)),  # it may have moved
            )
            broker.start()
            stack.callback(broker.stop)
            stack.callback(self._servers.close)
            stack.callback(self._models.close)
            await self._serve(workspace, queue, announcer, broker, lock)

    async def _serve(
        self, workspace: Workspace, queue: BatchQueue, announcer: Announcer, broker: Broker, lock: StateLock
    ) -> None:
        self._become("starting", announcer)
        kept = self._profile.nats.streams
        sinks = [Sink("local", lambda: broker.address, owned=True, streams=kept), Sink("egress", self._egress)]
        publisher = Publisher(announcer.outbox, sinks, subjects=announcer.names.all(), name=self._name)
        live = LivePublisher(publisher.uplinks, node=self._name, boot=workspace.boot)
        player = self._player(workspace, queue, announcer, live)
        health = Health(self._profile, workspace.clock, self._servers, self._models, lambda: self._awake(player))
        operations = self._operations(workspace, queue, player, health)
        served = asyncio.Event()
        home, away = self._heard(operations), self._heard(operations, commands=self._profile.nats.control)
        answer = partial(serve, self._subject, name=self._name)
        work: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "publishing": publisher.run,
            "telling what happens": live.run,
            "telling how the node is": partial(health.tell, live),
            "answering": partial(answer, home, lambda: broker.address, on_served=served.set),
            "answering on the other broker": partial(answer, away, self._egress),
        }
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(kept_going(what, begin)) for what, begin in work.items()]
            await _in_time(served)
            lock.announce(self._node_file(workspace, broker))
            player.announce_missing(await asyncio.to_thread(announcer.outbox.known_ids))
            self._servers.autostart()
            player.start()
            self._on_serving(self._node_file(workspace, broker))
            self._become("idle" if player.idle else "running", announcer)
            await self._until_stopped(player)
            self._become("stopping", announcer)
            await end_playing(player, lambda: self._drain, self._at_once)
            self._become("stopped", announcer)
            await asyncio.to_thread(announcer.flush)
            await send_rest(publisher, self._at_once)
            await live.flush()
            for task in running:
                task.cancel()

    @property
    def _subject(self) -> str:
        return control_subject(self._name)

    def _heard(self, operations: Operations, *, commands: bool = True) -> Callable[[bytes], bytes]:
        def answer(payload: bytes) -> bytes:
            self._asked = time.monotonic()
            return operations.answer(payload, commands=commands)

        return answer

    async def _until_stopped(self, player: Player) -> None:
        """Wait for ``stop``, or until there has been nothing to do for long enough."""
        while not self._stopping.is_set():
            if not player.idle:
                self._asked = time.monotonic()
            left_s = LOOK_S if self._idle_exit_s is None else self._asked + self._idle_exit_s - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_S)):
                    await self._stopping.wait()

    def _awake(self, player: Player) -> bool:
        """Whether anything is played, or anybody has asked something lately."""
        return not player.idle or time.monotonic() - self._asked < ASKED_S

    def _become(self, status: NodeStatus, announcer: Announcer) -> None:
        self._status = status
        announcer.status(status)

    def _player(self, workspace: Workspace, queue: BatchQueue, announcer: Announcer, live: LivePublisher) -> Player:
        def busy(playing: bool) -> None:
            if not self._stopping.is_set():
                self._become("running" if playing else "idle", announcer)

        announce = Announce(item=live, record=announcer.record, result=announcer.result, busy=busy)
        return Player(workspace, queue, announce, choose=self._choose, models=self._models)

    def _choose(self, spec: BatchSpec) -> Choice:
        """Where a batch that is about to begin is played; a server that is just being started is waited for.

        Raises:
            RunnerError: when it cannot be, as its server is not there or no model answers.
        """
        self._models.require(spec.model)
        self._servers.wait_for(spec.env, self._stopping.is_set)
        return decide(entry_of(self._profile, spec.env), spec.env, spec.mode)

    def _operations(self, workspace: Workspace, queue: BatchQueue, player: Player, health: Health) -> Operations:
        loop = asyncio.get_running_loop()
        return Operations(
            profile=self._profile,
            files=EpisodeFiles(workspace.store, workspace.index),
            queue=queue,
            player=player,
            servers=self._servers,
            models=self._models,
            health=lambda: self._health(workspace, health),
            stopping=self._stopping.is_set,
            shutdown=lambda drain: loop.call_soon_threadsafe(partial(self.stop, drain=drain)),
        )

    def _health(self, workspace: Workspace, health: Health) -> NodeHealth:
        egress = self._egress()
        return NodeHealth(
            node=self._name,
            boot=workspace.boot,
            pid=os.getpid(),
            profile=self._profile.id,
            version=__version__,
            status=self._status,
            uptime_s=time.monotonic() - self._started,
            data_dir=str(self._data_dir),
            egress=None if egress is None else egress.shown,
            items=health.latest,
        )

    def _node_file(self, workspace: Workspace, broker: Broker) -> NodeFile:
        return NodeFile(
            node=self._name,
            boot=workspace.boot,
            pid=os.getpid(),
            url=broker.url,
            credential_file=str(broker.credential_file),
            started_at=workspace.clock.now(),
            version=__version__,
        )


async def _in_time(served: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(START_S):
            await served.wait()
    except TimeoutError as exc:
        raise BusError(
            "timeout", f"the own broker did not answer within {START_S:g} s; see logs/nats-server.log"
        ) from exc

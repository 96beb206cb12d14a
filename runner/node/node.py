"""A node from start to stop: its state lock, broker, publishing, batches and control requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from nats.aio.client import Client

from runner import __version__
from runner.batch.result import BatchResult
from runner.batch.spec import NODE_FILES, BatchSpec, ResolvedBatch, place_batch, resolve_spec
from runner.batch.workspace import Workspace
from runner.bus.address import BusAddress
from runner.bus.broker.broker import Broker
from runner.bus.connection import NatsConnection
from runner.bus.errors import BusError
from runner.bus.request_server import RequestHandler
from runner.bus.rpc import send_request, serve
from runner.bus.streams import ensure_live_stream
from runner.config import Profile, ProfileFile
from runner.errors import StoreError, catch_foreign
from runner.events.control import ControlReply, ControlRequest, NodeHealth
from runner.events.subjects import DurableNames, control_subject
from runner.inference.api_keys import variable_names
from runner.inference.profile_models import Models
from runner.machine.sampler import GpuMeter, MachineSampler
from runner.node.batch_player import BatchCallbacks, BatchPlayer
from runner.node.batch_queue import BatchQueue, recover_queue
from runner.node.env_servers import EnvServerManager
from runner.node.file_chunks import EpisodeFiles
from runner.node.handlers import ControlHandler, find_problem, reject
from runner.node.health import HealthMonitor
from runner.node.retention import Policy, Pruner, prune_when_idle
from runner.node.state_lock import NodeFile, StateLock, keep_files
from runner.node.storage import storage_required
from runner.node.text_indexing import index_texts
from runner.publish.live_publisher import STREAM_TIMEOUT_S, LivePublisher
from runner.publish.notifier import Notifier
from runner.publish.outbox import EventRecorder
from runner.publish.publisher import Publisher, Sink
from runner.store.notes import Notes
from runner.types.fields import NodeStatus
from runner.util.display_text import one_line

logger = logging.getLogger(__name__)

Services: TypeAlias = dict[str, Callable[[], Coroutine[Any, Any, None]]]
"""By name, what is run until the node ends, and again after a failure."""

STOP_TIMEOUT_S = 15.0
"""Maximum seconds to wait for the running steps, and separately for publishing the remaining events."""
STALL_TIMEOUT_S = 3.0
"""Seconds without a delivered event after which publishing ends; the outbox keeps the remaining events."""
JOIN_POLL_S = 0.2
RETRY_S = 1.0
"""Seconds until a failed service restarts."""
IDLE_POLL_S = 5.0
RECENT_REQUEST_S = 60.0
"""Seconds after a control request during which the models are checked often, because a client is active."""
BROKER_START_TIMEOUT_S = 15
"""Maximum seconds until the node's own broker must accept a connection; those in which the node is stopped are free."""
SLOW_START_S = 5.0
"""Seconds between two reports of a broker that does not listen yet."""
_WAIT_PERIOD_S = 1.0
HEALTH_REQUEST = msgspec.json.encode(ControlRequest(id="name", op="health"))


async def check_name_is_free(name: str, boot: str, address: BusAddress | None) -> None:
    """Raise ``StoreError`` if another node with this name answers a health request on the egress bus.

    ``boot`` is the boot id of this node, whose own reply does not count.
    """
    if address is None:
        return
    connection: NatsConnection | None = None
    try:
        async with await NatsConnection.open(address, name=name) as connection:
            reply = await send_request(connection, control_subject(name), HEALTH_REQUEST, timeout_s=1.0)
    except BusError as exc:
        if connection is None or exc.kind != "timeout":  # else the name is free: a mere listener is silent
            logger.warning("could not check whether the node name %s is free: %s", name, exc)
        return
    if reply is not None and (other := _boot_of(reply)) != boot:
        raise StoreError(
            f"another node named {name} (boot {one_line(other, 40)}) already answers on {address.display_url}; "
            "choose another --node"
        )


def _boot_of(reply: bytes) -> str:
    """If the reply contains none, the id is "unknown"."""
    with contextlib.suppress(ValueError, RecursionError):  # also for invalid UTF-8 and for deep nesting
        decoded = msgspec.json.decode(reply, type=ControlReply)
        if isinstance(decoded.result, msgspec.Raw):
            return msgspec.json.decode(decoded.result, type=NodeHealth).boot
    return "unknown"


async def stop_batches(batch_player: BatchPlayer, is_draining: Callable[[], bool], immediate: asyncio.Event) -> None:
    """Let the batch player stop, and wait until it has.

    While ``is_draining()`` is true, it continues to run the queued batches. After that it has ``STOP_TIMEOUT_S``
    seconds to end the running steps, or no time if ``immediate`` is set.
    """
    if is_draining():
        batch_player.drain()
    stopped_at: float | None = None
    while True:
        if stopped_at is None and not is_draining():
            batch_player.stop()
            stopped_at = time.monotonic()
        if await asyncio.to_thread(batch_player.join, JOIN_POLL_S):
            return
        if stopped_at is not None and (immediate.is_set() or time.monotonic() - stopped_at > STOP_TIMEOUT_S):
            logger.warning("a step did not end in time; its episode is recovered from the journal at the next start")
            return


async def publish_remaining(
    publisher: Publisher,
    immediate: asyncio.Event,
    *,
    timeout_s: float = STOP_TIMEOUT_S,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> None:
    """Publish the events in the outbox until it is empty or ``immediate`` is set, for at most ``timeout_s`` seconds.

    Publishing also ends after ``stall_timeout_s`` seconds without a delivery. Undelivered events stay in the outbox.
    """
    sending = asyncio.create_task(publisher.wait_until_drained(timeout_s, stall_timeout_s=stall_timeout_s))
    interrupted = asyncio.create_task(immediate.wait())
    done, pending = await asyncio.wait({sending, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


async def run_with_restarts(
    name: str, create: Callable[[], Coroutine[Any, Any, None]], *, retry_s: float = RETRY_S
) -> None:
    """Log each exception and restart the service ``retry_s`` seconds later."""
    task = asyncio.current_task()

    def report(exc: BaseException) -> None:
        while isinstance(exc, BaseExceptionGroup):
            exc = exc.exceptions[0]
        logger.warning("%s failed and restarts: %s: %s", name, type(exc).__name__, exc)

    while not (task is not None and task.cancelling()):
        with catch_foreign(report):
            # A separate task, because a TaskGroup leaves its cancellation state on the task that runs it.
            await asyncio.create_task(create())
            return
        await asyncio.sleep(retry_s)


@dataclass(eq=False, repr=False)
class Node:
    """The service that owns one state directory and runs its batches.

    Attributes:
        egress: returns the address of a second broker that also receives the events, or None; called before each
            attempt to connect.
        idle_exit_s: stop the node after this many seconds without batches and requests; None: never.
        on_ready: called with ``node.json`` when the node answers requests; it may still read its episodes.
    """

    profile: Profile
    data_dir: Path
    name: str
    _: KW_ONLY
    egress: Callable[[], BusAddress | None]
    idle_exit_s: float | None = None
    on_ready: Callable[[NodeFile], object] = lambda node_file: None
    profile_file: ProfileFile | None = None
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        self._servers = EnvServerManager(self.profile, self.data_dir / "logs")
        self._models = Models(self.profile.agent, os.environ)
        self._notifier = Notifier(self.profile, self.name, os.environ)
        self._stopping = asyncio.Event()
        self._immediate = asyncio.Event()
        self._drain = False
        self._status: NodeStatus = "starting"
        self._has_read = False
        self._reading = threading.Thread()  # reads the episodes again if the index was deleted
        self._started = self._last_activity_at = time.monotonic()

    def stop(self, *, drain: bool = False) -> None:
        """Request a stop; call it in the node's event loop, e.g. from a signal handler.

        With ``drain``, the node first runs its queued batches; a second call without ``drain`` ends that early.
        """
        self._drain = drain and (self._drain or not self._stopping.is_set())
        self._stopping.set()

    def interrupt(self) -> None:
        """Request a stop; if the node is already stopping, do not wait for running steps and unpublished events."""
        if self._stopping.is_set() and not self._drain:
            self._immediate.set()
        self.stop()

    async def run(self) -> None:
        """Run the node until it is stopped or has been idle for ``idle_exit_s``.

        Raises:
            RunnerError: if another node uses the directory or the name, nothing can be stored in the directory, or the
                broker cannot be started.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(storage_required(self.data_dir))
            self._lock = lock = StateLock(self.data_dir)
            stack.callback(lock.release)
            self._variables = lock.digest_variables(variable_names(self.profile.agent), os.environ)
            self._workspace = workspace = Workspace(
                self.data_dir, node=self.name, profile=self.profile.id, boot=lock.boot, reconcile=False
            )
            stack.callback(workspace.close)
            await check_name_is_free(self.name, workspace.boot, self.egress())
            self._queue = BatchQueue(self.data_dir)
            self._recorder = EventRecorder(workspace, DurableNames.of(self.profile.nats), role="node")
            stack.callback(self._recorder.close)
            self._broker = Broker(
                self.data_dir,
                self.name,
                live_bytes=self.profile.nats.streams.live.max_bytes,
                monitor_port=self.profile.nats.monitor_port,
                on_restart=lambda: lock.write_node_file(self._node_file()),  # its port may have changed
            )
            await self._start_broker()
            for close in (self._broker.stop, self._servers.close, self._models.close, self._notifier.close):
                stack.callback(close)
            await self._serve()

    async def _start_broker(self) -> None:
        """Report while the broker does not listen; raises a ``BusError``, also if the node is stopped."""
        starting = asyncio.create_task(asyncio.to_thread(self._broker.start, self._stopping.is_set))
        while not (await asyncio.wait({starting}, timeout=SLOW_START_S))[0]:
            log = self._broker.log
            logger.warning("the node's own broker, nats-server, has started and does not listen yet; see %s", log)
        await starting

    async def _serve(self) -> None:
        nats, recorder, workspace = self.profile.nats, self._recorder, self._workspace
        local = Sink("local", lambda: self._broker.address, owned=True, streams=nats.streams)
        sinks = [local, Sink("egress", self.egress)]
        self._publisher = publisher = Publisher(recorder.outbox, sinks, subjects=recorder.names.all(), name=self.name)
        publisher.register_sinks()
        self._set_status("starting")
        live = LivePublisher(publisher.sink_connections, node=self.name, boot=workspace.boot, tokens=nats.live_tokens)
        sampler = MachineSampler(self.data_dir, workspace.clock)
        workspace.meter = GpuMeter(sampler, workspace.clock.monotonic)
        self._player = self._create_batch_player(live)
        self._queue.report_to(live.put, workspace.clock)
        ready = asyncio.Event()
        services: Services = {
            "event publisher": publisher.run,
            "live publisher": live.run,
            **self._control_services(live, sampler, ready),
        }
        async with asyncio.TaskGroup() as tasks:
            service_tasks: list[asyncio.Task[None]] = []

            def start(services: Services) -> None:
                for name, create in services.items():
                    service = run_with_restarts(name, create, retry_s=self.retry_s)
                    service_tasks.append(tasks.create_task(service))

            start(services)
            await _wait_for_broker(ready)
            self._lock.write_node_file(self._node_file())
            self.on_ready(self._node_file())
            self._servers.autostart()
            await asyncio.to_thread(self._read_episodes)
            if self._has_read:
                start(self._upkeep())
                await self._play()
            self._set_status("stopped")
            await publish_remaining(publisher, self._immediate)
            await live.flush()
            for task in service_tasks:
                task.cancel()

    def _control_services(self, live: LivePublisher, sampler: MachineSampler, ready: asyncio.Event) -> Services:
        health = HealthMonitor(
            self.profile,
            self._workspace.clock,
            self._servers,
            self._models,
            self._is_active,
            lambda: self._player.storage_problem,
            indexing=self._indexing,
            status=lambda: self._status,
            n_waiting=lambda: len(self._queue.with_status("queued")),
            sampler=sampler,
        )
        handler = self._create_handler(health)

        def requests(*, commands: bool) -> RequestHandler:
            def handle(payload: bytes) -> bytes:
                self._note_activity()
                return handler.handle(payload, commands=commands)

            return RequestHandler(find_problem, reject, handle)

        def create_live_stream(client: Client) -> Coroutine[Any, Any, None]:
            # a console that is answered subscribes at once; without a stream it would miss what follows
            return ensure_live_stream(client.jetstream(timeout=STREAM_TIMEOUT_S), self.profile.nats.streams)

        local, egress = requests(commands=True), requests(commands=self.profile.nats.control)
        serve_requests = partial(serve, control_subject(self.name), name=self.name, reserved=self._recorder.names.all())
        restored = {
            "node.json": self._lock.restore_node_file,
            "the broker's credential": self._broker.restore_credential,
        }
        return {
            "health monitor": partial(health.run, live),
            "control server": partial(
                serve_requests, local, lambda: self._broker.address, prepare=create_live_stream, on_served=ready.set
            ),
            "control server of the egress broker": partial(serve_requests, egress, self.egress),
            "keeper of the state files": partial(keep_files, restored),
        }

    def _upkeep(self) -> Services:
        workspace, policy = self._workspace, Policy.from_profile(self.profile.retention)
        pruner = Pruner(workspace.store, workspace.index, self._recorder.outbox, workspace.clock)
        return {
            "retention": partial(
                prune_when_idle, pruner, policy, lambda: self._player.is_idle and not self._stopping.is_set()
            ),
            "full-text index": partial(index_texts, self.data_dir, lambda: self._player.is_idle),
        }

    async def _play(self) -> None:
        self._player.start()
        self._set_status("idle" if self._player.is_idle else "running")
        self._note_activity()
        await self._wait_until_stopped()
        self._set_status("stopping")
        await stop_batches(self._player, lambda: self._drain, self._immediate)

    def _read_episodes(self) -> None:
        """Read the new episode files, which may take minutes, and derive from them what a killed node has not saved."""
        queue, recorder, player = self._queue, self._recorder, self._player
        with storage_required(self.data_dir):
            self._workspace.index.reconcile(self._is_stopping)
            if self._is_stopping():
                return
            recover_queue(queue, self._workspace, recorder.ended_batches())
            player.restore_parts()
            recorder.record_missed_batches(queue.ids)
            player.publish_missing_results(recorder.ended_batches())
            recorder.record_batteries(queue.ended_batteries())
            recorder.finish_reading()
            self._has_read = True

    def _is_stopping(self) -> bool:
        return self._stopping.is_set() and not self._drain

    def _indexing(self, wait_s: float = 0.0) -> str | None:
        """Return how far the episodes are read, at the start or because the index was deleted; None: all of them."""
        if self._has_read and self._is_index_complete(wait_s):
            return None
        progress = self._workspace.index.progress
        return "indexing" if progress is None else "indexing {:,} of {:,}".format(*progress)

    def _is_index_complete(self, wait_s: float) -> bool:
        with contextlib.suppress(StoreError):
            if self._workspace.index.is_complete():
                return True
            if not self._reading.is_alive():
                self._reading = threading.Thread(target=self._read_again, name="index", daemon=True)
                self._reading.start()
            self._reading.join(wait_s)
            return self._workspace.index.is_complete()
        return True

    def _read_again(self) -> None:
        with contextlib.suppress(StoreError):  # its next use reports it
            self._workspace.index.complete()

    def _note_activity(self) -> None:
        self._last_activity_at = time.monotonic()

    async def _wait_until_stopped(self) -> None:
        while not self._stopping.is_set():
            if not self._player.is_idle:
                self._note_activity()
            remaining_s = IDLE_POLL_S
            if self.idle_exit_s is not None:
                remaining_s = self._last_activity_at + self.idle_exit_s - time.monotonic()
            if remaining_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(remaining_s, IDLE_POLL_S)):
                    await self._stopping.wait()

    def _is_active(self) -> bool:
        return self._status == "running" or time.monotonic() - self._last_activity_at < RECENT_REQUEST_S

    def _set_status(self, status: NodeStatus) -> None:
        self._status = status
        self._recorder.record_status(status)

    def _create_batch_player(self, live: LivePublisher) -> BatchPlayer:
        queue, recorder = self._queue, self._recorder

        def record_batteries() -> None:
            ended = queue.ended_batteries()
            ended.pop(player.battery_id or "", None)  # a batch counts as cancelled while it still ends
            recorder.record_batteries(ended)

        def on_result(result: BatchResult) -> None:
            recorder.record_batch(result)
            if result.status == "cancelled":  # perhaps before it began, as the last of its battery
                record_batteries()

        def on_busy(is_busy: bool) -> None:
            record_batteries()
            self._note_activity()
            if not self._stopping.is_set():
                self._set_status("running" if is_busy else "idle")

        callbacks = BatchCallbacks(live, on_result, on_busy, wants_item=live.wants, on_end=self._notifier.notify)
        player = BatchPlayer(self._workspace, queue, callbacks, place=self._place, models=self._models)
        return player

    def _place(self, spec: BatchSpec) -> ResolvedBatch:
        self._models.require(spec.model)
        self._servers.wait_for(spec.env, self._stopping.is_set)
        return place_batch(resolve_spec(self.profile, spec), NODE_FILES)

    def _create_handler(self, health: HealthMonitor) -> ControlHandler:
        workspace, loop = self._workspace, asyncio.get_running_loop()
        return ControlHandler(
            profile=self.profile,
            files=EpisodeFiles(workspace.store, workspace.index),
            notes=Notes(workspace.data_dir, workspace.clock),
            queue=self._queue,
            batch_player=self._player,
            servers=self._servers,
            models=self._models,
            health=lambda: self._health(health),
            stopping=self._stopping.is_set,
            indexing=self._indexing,
            send_history=self._publisher.send_earlier,
            shutdown=lambda drain: loop.call_soon_threadsafe(partial(self.stop, drain=drain)),
        )

    def _health(self, health: HealthMonitor) -> NodeHealth:
        egress = self.egress()
        return NodeHealth(
            node=self.name,
            boot=self._workspace.boot,
            pid=os.getpid(),
            profile=self.profile.id,
            version=__version__,
            status=self._status,
            uptime_s=time.monotonic() - self._started,
            data_dir=str(self.data_dir),
            egress=None if egress is None else egress.display_url,
            n_held=self._publisher.n_held,
            items=health.latest,
            indexing=self._indexing(),
        )

    def _node_file(self) -> NodeFile:
        return NodeFile(
            node=self.name,
            boot=self._workspace.boot,
            pid=os.getpid(),
            url=self._broker.url,
            credential_file=str(self._broker.credential_file),
            started_at=self._workspace.clock.now(),
            version=__version__,
            profile=self.profile.id,
            profile_path="" if self.profile_file is None else str(self.profile_file.path),
            profile_digest="" if self.profile_file is None else self.profile_file.digest,
            variables=self._variables,
        )


async def _wait_for_broker(ready: asyncio.Event) -> None:
    for _ in range(BROKER_START_TIMEOUT_S):  # a stop of the process, however long, costs one period
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_PERIOD_S):
                await ready.wait()
                return
    raise BusError(
        "timeout", f"the node's own broker did not answer within {BROKER_START_TIMEOUT_S} s; see logs/nats-server.log"
    )

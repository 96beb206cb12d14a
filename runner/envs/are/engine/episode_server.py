"""Loads ARE once, and forks a new process for each episode; each process speaks frames over a socket of its own.

``runner.envs.are.client`` lists the frames.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from runner.envs.are.engine import determinism, judging
from runner.envs.are.engine.played_scenario import Part, PlayedScenario
from runner.envs.are.scenario_scan import installed_version
from runner.envs.are.tools import MAX_FRAME_BYTES
from runner.util.fork_server import ForkServer
from runner.util.framing import FrameTooLarge, read_frame, send_frame

SANDBOX_SHOWN = "/tmp/are"
"""Path that stands for the scratch folder of an episode in everything that leaves this process."""
ALARM_GRACE_S = 5.0
"""Seconds after the time limit of a request at which its process ends by itself, if the other side has not ended it."""


def receive(connection: socket.socket) -> dict[str, Any]:
    """Raises ``ConnectionError`` at the end of the stream."""
    if (data := read_frame(connection, MAX_FRAME_BYTES)) is None:
        raise ConnectionError
    frame: dict[str, Any] = json.loads(data)
    return frame


def send(connection: socket.socket, frame: dict[str, Any], replace: Callable[[str], str] = str) -> None:
    """Send a frame; ``replace`` is applied to its JSON text."""
    try:
        data = replace(json.dumps(frame, ensure_ascii=False)).encode("utf-8", "replace")
        send_frame(connection, data, MAX_FRAME_BYTES)
    except FrameTooLarge as exc:
        send(connection, _failed("too_large", f"the reply is {exc}"))


class Limits(NamedTuple):
    """What an episode may use: memory in addition to the loaded package, and time for each request."""

    memory_mib: int
    step_s: float


def serve(control_fd: int, scratch: Path, limits: Limits) -> None:
    """Load ARE, report its scenarios, and fork on request until the control socket is closed; remove the files."""
    control = socket.socket(fileno=control_fd)
    try:
        with contextlib.suppress(ConnectionError):
            _load_and_serve(control, scratch, limits)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _load_and_serve(control: socket.socket, scratch: Path, limits: Limits) -> None:
    determinism.install()
    logging.disable(logging.WARNING)
    try:
        scenarios = _load_scenarios()
    except Exception as exc:  # noqa: BLE001 - an import of a foreign package may raise anything
        send(control, _failed("import", f"{type(exc).__name__}: {exc}"))
        return
    gc.collect()
    gc.freeze()
    version = installed_version() or "unknown"
    send(control, {"type": "ready", "version": version, "scenarios": sorted(scenarios), "pid": os.getpid()})
    play = partial(_play, scenarios, scratch, limits)
    ForkServer(control, play, lambda pid: shutil.rmtree(scratch / str(pid), ignore_errors=True)).run()


def _load_scenarios() -> dict[str, Any]:
    from are.simulation.environment import Environment  # noqa: F401 - loaded before the first fork
    from are.simulation.scenarios.utils.registry import SCENARIO_ENTRY_POINT_GROUP, registry
    from are.simulation.time_manager import TimeManager
    from fsspec.implementations.local import LocalFileSystem

    judging.install()
    scenarios: dict[str, Any] = dict(registry.get_all_scenarios())
    own = {point.module.partition(".")[0] for point in entry_points(group=SCENARIO_ENTRY_POINT_GROUP)}
    determinism.patch_modules({"are", *own})
    determinism.patch_time_manager(TimeManager)
    determinism.patch_file_system(LocalFileSystem)
    return scenarios


def _play(scenarios: dict[str, Any], scratch: Path, limits: Limits, request: bytes, descriptors: list[int]) -> NoReturn:
    folder = scratch / str(os.getpid())
    try:
        folder.mkdir()
        _limit_memory(limits.memory_mib)
        determinism.reset_chance(str(folder))
        EpisodeServer(socket.socket(fileno=descriptors[0]), scenarios, folder, limits).run()
    except BaseException:  # noqa: BLE001 - the process ends in any case, and its output is logged
        traceback.print_exc()
    finally:
        try:  # a scenario may have closed them
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)


class EpisodeServer:
    def __init__(self, connection: socket.socket, scenarios: dict[str, Any], folder: Path, limits: Limits) -> None:
        self._connection = connection
        self._scenarios = scenarios
        self._folder = folder
        self._limits = limits
        self._played: PlayedScenario | None = None

    def run(self) -> None:
        """An alarm ends the process if a request takes too long."""
        judging.MODEL.send = self._ask
        with contextlib.suppress(ConnectionError):
            while True:
                request = receive(self._connection)
                signal.setitimer(signal.ITIMER_REAL, self._limits.step_s + ALARM_GRACE_S)
                try:
                    reply = self._reply(request)
                except judging.JudgeFailed as exc:
                    reply = _failed("judge", str(exc))
                except MemoryError:
                    reply = _failed("memory", f"more than {self._limits.memory_mib} MiB of memory are needed")
                except Exception as exc:  # noqa: BLE001 - a scenario may raise anything
                    reply = _failed("scenario", f"{type(exc).__name__}: {exc}")
                signal.setitimer(signal.ITIMER_REAL, 0)
                send(self._connection, reply, self._shown)

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["type"] == "reset":
            return self._reset(str(request["scenario"]))
        if self._played is None:
            return _failed("protocol", f"{request['type']} before reset")
        if request["type"] == "call":
            return self._stepped(self._played.call(str(request["name"]), dict(request["arguments"])))
        details = {**self._played.evaluate(), "memory_limit_mib": self._limits.memory_mib}
        return {"type": "evaluated", "details": details}

    def _ask(self, chat: judging.Chat) -> str:
        """The time limit of the request does not count meanwhile."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            send(self._connection, {"type": "ask", "messages": chat}, self._shown)
            answer = receive(self._connection)
        finally:
            signal.setitimer(signal.ITIMER_REAL, self._limits.step_s + ALARM_GRACE_S)
        if answer["text"] is None:
            raise judging.JudgeFailed(str(answer["problem"]))
        return str(answer["text"])

    def _reset(self, name: str) -> dict[str, Any]:
        create = self._scenarios.get(name)
        if create is None:
            return _failed("unknown_scenario", f"ARE has no scenario {name!r}; it has {', '.join(self._scenarios)}")
        for module in ("are.simulation.config", "are.simulation.apps.sandbox_file_system"):
            if module in sys.modules:
                vars(sys.modules[module])["ARE_SIMULATION_SANDBOX_PATH"] = str(self._folder)
        self._played = PlayedScenario(create(), str(self._folder))
        return {**self._stepped(self._played.start()), "tools": self._played.tool_schemas()}

    def _shown(self, text: str) -> str:
        """Replace the episode's folder and the folder above it, whose names are random."""
        return text.replace(str(self._folder), SANDBOX_SHOWN).replace(str(self._folder.parent), SANDBOX_SHOWN)

    def _stepped(self, parts: list[Part]) -> dict[str, Any]:
        assert self._played is not None
        done = self._played.done
        reward = float(self._played.evaluate()["success"] is True) if done else 0.0
        oracle = None if done else self._played.next_oracle_action()
        return {"type": "stepped", "parts": parts, "done": done, "reward": reward, "oracle": oracle}


def _failed(kind: str, message: str) -> dict[str, Any]:
    return {"type": "failed", "kind": kind, "message": message[:2000]}


def _limit_memory(memory_mib: int) -> None:
    """The limit is that of the loaded package and ``memory_mib`` more."""
    used = 0
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + (memory_mib << 20)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS if used else resource.RLIMIT_DATA, (limit, limit))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

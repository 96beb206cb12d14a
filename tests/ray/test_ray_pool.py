from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import psutil
import pytest

from runner import __version__
from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored, LiveItems
from runner.batch.result import BatchResult
from runner.batch.spec import ResolvedBatch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, RaySettings
from runner.config.profile import EndpointConfig
from runner.envs.http.server import ServerAddress
from runner.envs.placement import Placement
from runner.errors import ConfigError
from runner.events.live import EpisodeStarted
from runner.inference.profile_models import Models
from runner.pool import ray_cluster
from runner.pool.ray_pool import RayTimings, open_ray_pool
from runner.pool.worker import WorkerPool
from runner.types import EpisodePaused, Limits, WorkerState
from tests.ray.conftest import ClusterOfTwo, shown
from tests.support.batches import resolved_batch
from tests.support.model_server import ModelServer
from tests.support.slot_server import run_slot_server

KEY = "sk-8c1f0a-a-secret-key-of-a-model"
SETTINGS = RaySettings(address="auto")
OBSERVED_S = 60
"""Maximum seconds until an event of a batch."""


def open_pool(
    batch: ResolvedBatch, workspace: Workspace, settings: RaySettings = SETTINGS, models: Models | None = None
) -> WorkerPool:
    agent = None if models is None else models.settings
    return open_ray_pool(settings, batch.setup, models, workspace.store.runs, agent)


def stored(workspace: Workspace, result: BatchResult) -> list[dict[str, Any]]:
    files = (workspace.data_dir / "runs" / result.batch_id).glob("*.json")
    episodes = [json.loads(file.read_bytes()) for file in files]
    return sorted(episodes, key=lambda episode: (episode["task_index"], episode["attempt"], episode["started_at"]))


def played(episode: dict[str, Any]) -> list[object]:
    steps = [
        [step[key] for key in ("index", "chats", "action", "observation", "reward", "done")]
        for step in episode["timesteps"]
    ]
    return [steps, *(episode[key] for key in ("task_index", "seed", "reset_observation", "outcome", "reward"))]


class Interference:
    """Runs a function once on a thread of its own, at the first step played while ``n_playing`` episodes run."""

    def __init__(self, act: Callable[[], object], n_playing: int = 1) -> None:
        self._act, self._n_playing = act, n_playing
        self._playing: set[str] = set()
        self._thread: threading.Thread | None = None

    def __call__(self, item: BatchItem) -> None:
        if isinstance(item, EpisodeStarted):
            self._playing.add(item.episode_id)
        elif isinstance(item, EpisodeStored):
            self._playing.discard(item.end.episode_id)
        is_step = isinstance(item, LiveItems) and item.kind == "timestep"
        if is_step and len(self._playing) >= self._n_playing and self._thread is None:
            self._thread = threading.Thread(target=self._act)
            self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(OBSERVED_S)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(("env", "agent"), [("BabyAI", "oracle"), ("Maze", "random")])
def test_a_batch_over_ray_has_the_episodes_of_one_in_this_process(
    cluster: ClusterOfTwo, workspace: Workspace, env: str, agent: str
) -> None:
    planned = resolved_batch(
        env=env, agent=agent, repeat=8, attempts=2, seed=7, concurrency=4, limits=Limits(max_rounds=9)
    )
    remote = Batch(planned, workspace, pool=open_pool(planned, workspace)).run()
    local = Batch(planned, workspace).run()
    assert (remote.status, remote.n_episodes, remote.problems) == ("completed", 16, [])
    episodes = stored(workspace, remote)
    assert list(map(played, episodes)) == list(map(played, stored(workspace, local)))
    workers = {(each["worker"]["kind"], each["worker"]["host"], each["worker"]["id"]) for each in episodes}
    assert 1 <= len(workers) <= 4
    assert {(kind, host) for kind, host, _ in workers} == {("ray", socket.gethostname())}


def test_a_killed_actor_costs_only_its_episode_which_is_played_again(
    cluster: ClusterOfTwo, workspace: Workspace
) -> None:
    planned = resolved_batch(env="SlowCounter", agent="AsyncUpAgent", repeat=12, concurrency=2)
    pids: dict[str, int] = {}

    def note_pid(item: BatchItem) -> None:
        if isinstance(item, WorkerState) and item.pid is not None:
            pids.setdefault(item.id, item.pid)

    killed = Interference(lambda: os.kill(next(iter(pids.values())), signal.SIGKILL))
    result = Batch(planned, workspace, pool=open_pool(planned, workspace), observers=[note_pid, killed]).run()
    killed.join()
    assert (result.status, result.n_success, result.n_episodes) == ("completed", 12, 12)
    outcomes = Counter(episode["outcome"] for episode in stored(workspace, result))
    assert outcomes == {"success": 12, "interrupted": 1}


def test_a_lost_node_costs_only_its_episodes(cluster: ClusterOfTwo, workspace: Workspace) -> None:
    planned = resolved_batch(env="SlowCounter", agent="AsyncUpAgent", repeat=48, concurrency=4)
    removed = Interference(cluster.lose_node, n_playing=4)  # so that both nodes play
    gone: set[str] = set()

    def note_lost(item: BatchItem) -> None:
        if isinstance(item, WorkerState) and item.state == "lost":
            gone.add(item.id)

    try:
        result = Batch(planned, workspace, pool=open_pool(planned, workspace), observers=[removed, note_lost]).run()
        removed.join()
    finally:
        cluster.restore_node()
    assert (result.status, result.n_success, result.n_episodes) == ("completed", 48, 48)
    lost = [episode for episode in stored(workspace, result) if episode["outcome"] == "interrupted"]
    assert len(gone) == 2
    assert len(lost) <= 2  # an episode that had not started when its worker went is not stored
    assert all(episode["error"]["type"] == "worker_lost" for episode in lost)


def test_a_cancelled_batch_ends_its_episodes_at_their_next_await(cluster: ClusterOfTwo, workspace: Workspace) -> None:
    planned = resolved_batch(env="AsyncHanging", agent="AsyncUpAgent", repeat=8, concurrency=2)
    states: list[WorkerState] = []

    def cancel(item: BatchItem) -> None:
        if isinstance(item, WorkerState):
            states.append(item)
            if len({state.id for state in states if state.state == "playing"}) == 2:
                batch.command("cancel")

    batch = Batch(planned, workspace, pool=open_pool(planned, workspace), observers=[cancel], step_grace_s=0.2)
    result = batch.run()
    assert (result.status, result.outcomes) == ("cancelled", {"cancelled": 2})
    assert "lost" not in {state.state for state in states}
    assert all(episode["error"] is None for episode in stored(workspace, result))


def test_an_episode_that_never_awaits_is_abandoned_with_its_actor(cluster: ClusterOfTwo, workspace: Workspace) -> None:
    planned = resolved_batch(env="Stuck", agent="UpAgent", repeat=2, concurrency=2, limits=Limits(max_duration_s=2))
    pids: set[int] = set()

    def note_pid(item: BatchItem) -> None:
        if isinstance(item, WorkerState) and item.pid is not None:
            pids.add(item.pid)

    result = Batch(planned, workspace, pool=open_pool(planned, workspace), observers=[note_pid], grace_s=0.5).run()
    assert result.outcomes == {"timeout": 2}
    assert {episode["error"]["type"] for episode in stored(workspace, result)} == {"slot_abandoned"}
    assert len(pids) >= 2
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=OBSERVED_S)
    assert alive == []


def test_a_paused_batch_over_ray_waits_until_it_is_resumed(cluster: ClusterOfTwo, workspace: Workspace) -> None:
    planned = resolved_batch(env="SlowCounter", agent="AsyncUpAgent", repeat=2, concurrency=1)
    kinds: list[str] = []

    def command(item: BatchItem) -> None:
        kinds.append(type(item).__name__)
        if isinstance(item, EpisodeStarted) and kinds.count("EpisodeStarted") == 1:
            batch.command("pause")
        elif isinstance(item, EpisodePaused):
            batch.command("resume")

    batch = Batch(planned, workspace, pool=open_pool(planned, workspace), observers=[command])
    assert (batch.run().n_success, kinds.count("EpisodePaused"), kinds.count("EpisodeResumed")) == (2, 1, 1)
    assert kinds.index("EpisodePaused") < kinds.index("EpisodeResumed") < kinds.index("EpisodeStored")


@pytest.mark.parametrize(("placement", "n_nodes"), [("spread", 2), ("pack", 1)])
def test_two_workers_are_placed_on_two_nodes_or_fill_one(
    cluster: ClusterOfTwo, workspace: Workspace, placement: Literal["spread", "pack"], n_nodes: int
) -> None:
    planned = resolved_batch(env="AsyncHanging", agent="AsyncUpAgent", repeat=2, concurrency=2)
    raylets: dict[str, int] = {}

    def cancel(item: BatchItem) -> None:
        if isinstance(item, WorkerState) and item.state == "playing" and item.pid is not None:
            raylets[item.id] = psutil.Process(item.pid).ppid()
            if len(raylets) == 2:
                batch.command("cancel")

    pool = open_pool(planned, workspace, RaySettings(address="auto", placement=placement))
    batch = Batch(planned, workspace, pool=pool, observers=[cancel], step_grace_s=0.2)
    assert batch.run().outcomes == {"cancelled": 2}
    assert len(set(raylets.values())) == n_nodes


def test_a_batch_for_which_no_node_has_room_is_interrupted_with_the_reason(
    cluster: ClusterOfTwo, workspace: Workspace
) -> None:
    planned = resolved_batch(env="Maze", agent="random")
    settings = RaySettings(address="auto", num_cpus=3, resources={"simulator": 1})
    pool = open_ray_pool(settings, planned.setup, None, workspace.store.runs, timings=RayTimings(start_s=1))
    result = Batch(planned, workspace, pool=pool).run()
    assert (result.status, result.interrupted_by, result.n_episodes) == ("interrupted", "workers", 0)
    assert "no node of the cluster has 3 CPUs, 1 simulator free" in str(result.interruption)


@pytest.mark.parametrize("n_slots", [2, 8])
def test_actors_never_share_an_instance_of_a_server(cluster: ClusterOfTwo, workspace: Workspace, n_slots: int) -> None:
    with run_slot_server(n_slots) as (server, handler):
        placement = Placement(transport="http", address=ServerAddress(f"{server.url}/maze", n_tasks=64))
        planned = resolved_batch(placement, env="Maze", agent="random", repeat=64, concurrency=4)
        result = Batch(planned, workspace, pool=open_pool(planned, workspace)).run()
    assert (result.status, result.outcomes.get("error", 0)) == ("completed", 0)
    assert [episode["reward"] for episode in stored(workspace, result)] == list(range(64))
    assert handler.n_created >= 64


def test_a_key_reaches_the_actors_and_no_file_command_line_or_environment_of_the_cluster(
    cluster: ClusterOfTwo, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_ACCESS", KEY)
    with ModelServer(models=("small",), token=KEY) as server:
        endpoint = EndpointConfig(url=server.url, name="lab", kind="openai", api_key_env="LAB_ACCESS")
        settings = AgentSettings(mode="local", local_fallback=None, model="small", endpoints=(endpoint,))
        models = Models(settings, os.environ)
        limits = Limits(max_rounds=3)
        planned = resolved_batch(
            models=models, env="Maze", agent="react", model="small", repeat=4, concurrency=2, limits=limits
        )
        result = Batch(planned, workspace, pool=open_pool(planned, workspace, models=models), models=models).run()
        models.close()
    assert (result.status, result.n_errors) == ("completed", 0), stored(workspace, result)[0]["error"]
    assert result.answers == {"lab: small": 12}
    assert [path for path in cluster.files() if KEY.encode() in path.read_bytes()] == []
    assert [process for process in cluster.processes() if KEY in shown(process)] == []


def test_loopback_addresses_are_refused_for_workers_elsewhere_unless_they_are_replaced(
    cluster: ClusterOfTwo, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "socket", FarAway)
    settings = AgentSettings(api_endpoint="http://127.0.0.1:3030/v1/chat/completions", local_fallback=None)
    models = Models(settings, {})
    planned = resolved_batch(models=models, env="Maze", agent="react", model="small")
    with pytest.raises(ConfigError, match=r"the model endpoint gateway at http://127\.0\.0\.1:3030"):
        open_pool(planned, workspace, models=models)
    open_pool(planned, workspace, RaySettings(address="auto", addresses={"localhost": "10.0.0.5"}), models).close()
    models.close()


class FarAway:
    """Replaces ``socket`` in a module: this machine is none of the cluster."""

    @staticmethod
    def gethostname() -> str:
        return "far-away"


def test_a_cluster_with_another_version_is_refused(
    cluster: ClusterOfTwo, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "__version__", "99.0")
    expected = rf"not installed like this machine: .*agentgym-console {__version__} instead of 99.0"
    with pytest.raises(ConfigError, match=expected):
        open_pool(resolved_batch(env="Maze", agent="random"), workspace)

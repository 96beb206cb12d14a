"""Places and leases: no episode is played in the instance of another one, and episodes wait for a place."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.envs.http.client import PLACES, places_on, release_lost_owner
from runner.envs.http.dialects import dialect_for
from runner.envs.http.environment import HttpEnvironment, select_dialect
from runner.envs.http.places import InstanceRegistry, PlaceTable
from runner.envs.http.server import ServerAddress, probe_servers
from runner.envs.maze import Maze
from runner.episode.factory import EpisodeFactory
from runner.errors import EnvironmentFault
from runner.types import Action, Limits, Outcome
from tests.support.command import COMMAND, ENVIRON
from tests.support.rude_env_server import EnvironmentHandler, RudeServer
from tests.support.serving import serve_environments
from tests.support.slot_server import N_STEPS, QuestionHandler, run_slot_server

N_EPISODES, N_SLOTS = 24, 8
MOVE = Action(text="move up")


def lease(places: PlaceTable, owner: str, server: str, instance: int | str) -> bool:
    replies: list[bool] = []
    places.request("lease", server, instance, replies.append, owner)
    return replies == [True]


async def play(address: ServerAddress, task: int) -> float:
    """Play a task of the slot server; return its reward."""
    env = HttpEnvironment(env="maze", address=address)
    try:
        assert (await env.reset(task_index=task))[0]["content"] == f"task {task}"
        rewards = [(await env.step(MOVE))[1] for _ in range(N_STEPS)]
        return sum(rewards)
    finally:
        await env.cleanup()


@pytest.mark.parametrize("places", [None, N_SLOTS, 3], ids=["learned", "all", "some"])
async def test_many_episodes_on_a_server_with_few_slots(places: int | None) -> None:
    with run_slot_server(N_SLOTS) as (server, handler):
        address = ServerAddress(server.url, 60, n_tasks=N_EPISODES, places=places)
        async with asyncio.timeout(60):
            rewards = await asyncio.gather(*(play(address, task) for task in range(N_EPISODES)))
        assert rewards == [float(task) for task in range(N_EPISODES)]
        assert len(handler.tasks) == N_SLOTS if places is None else len(handler.tasks) >= places


def test_episodes_of_several_threads_on_one_server() -> None:
    rewards: dict[int, float] = {}

    async def play_tasks(address: ServerAddress, tasks: range) -> None:
        played = await asyncio.gather(*(play(address, task) for task in tasks))
        rewards.update(zip(tasks, played, strict=True))

    with run_slot_server(N_SLOTS) as (server, _):
        address = ServerAddress(server.url, 60, n_tasks=N_EPISODES)
        shares = [range(start, N_EPISODES, 4) for start in range(4)]
        threads = [threading.Thread(target=asyncio.run, args=(play_tasks(address, share),)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert rewards == {task: float(task) for task in range(N_EPISODES)}


async def test_a_server_of_ours_reports_its_places() -> None:
    async def play_maze(address: ServerAddress) -> None:
        env = HttpEnvironment(env="maze", address=address)
        await env.reset()
        await env.step(MOVE)
        await env.cleanup()

    with serve_environments(["Maze"], max_open=2) as urls:
        address = (await asyncio.to_thread(probe_servers, {"Maze": ServerAddress(urls["Maze"])}, 60))["Maze"].address
        assert address.places == 2
        async with asyncio.timeout(60):
            await asyncio.gather(*(play_maze(address) for _ in range(12)))  # a third instance would be an error


async def test_the_instances_of_a_lost_worker_are_closed_before_others_get_its_places() -> None:
    dialect = dialect_for("maze")
    assert dialect is not None
    with serve_environments(["Maze"], max_open=1) as urls:
        address = ServerAddress(urls["Maze"], 60, places=1)
        key, _ = places_on(dialect, address)
        PLACES.declare(key, 1)
        PLACES.request("place", key, 0, bool, "lost")
        async with httpx.AsyncClient() as client:
            instance_id = (await client.post(f"{key}/create")).json()["id"]
        assert lease(PLACES, "lost", key, instance_id)
        env = HttpEnvironment(env="maze", address=address)
        reset = asyncio.create_task(env.reset())
        await asyncio.to_thread(release_lost_owner("lost", dialect, address).join, 60)
        async with asyncio.timeout(60):
            await reset  # the server refuses a second instance
        await env.cleanup()
    assert not PLACES.instances_of("lost")


async def test_a_wait_for_a_place_ends_with_the_time_limit_of_the_episode() -> None:
    with run_slot_server(1) as (server, handler):
        address = ServerAddress(server.url, 60, places=1)
        cfg = {"_target_": "runner.envs.http.environment.HttpEnvironment", "env": "maze", "address": address}
        runner = EpisodeFactory(
            env_cfg=cfg,
            agent_cfg={"_target_": "runner.agents.baselines.RandomAgent"},
            limits=Limits(max_duration_s=0.2),
        )
        key, places = places_on(select_dialect("maze", address), address)
        PLACES.declare(key, places)
        PLACES.request("place", key, 0, bool, "other")
        assert (await runner.play_episode()).outcome is Outcome.TIMEOUT
        assert handler.n_created == 0
        PLACES.release("place", key, 0, "other")
        async with asyncio.timeout(60):
            assert await play(address, 3) == 3.0


async def test_a_lost_owner_gives_its_places_and_instances_back() -> None:
    places, granted = PlaceTable(), list[int]()
    registry = InstanceRegistry(places)
    places.declare("s", 2)
    for place in range(3):
        places.request("place", "s", place, partial(lambda number, _: granted.append(number), place), "worker")
    assert lease(places, "worker", "s", 7)
    waiting = asyncio.create_task(registry.enter("s"))
    await asyncio.sleep(0)
    assert not await registry.lease("s", 7)
    assert places.instances_of("worker") == {"s": [7]}
    places.release_owner("worker")
    assert places.instances_of("worker") == {}
    async with asyncio.timeout(60):
        await waiting
    assert await registry.lease("s", 7)
    assert granted == [0, 1]  # the third one was lost while it waited


def test_an_owner_releases_only_what_it_holds() -> None:
    places = PlaceTable()
    assert lease(places, "a", "s", 1)
    places.release("lease", "s", 1, "b")
    assert not lease(places, "b", "s", 1)
    places.release("lease", "s", 1, "a")
    assert lease(places, "b", "s", 1)


def test_a_finalizer_may_interrupt_the_table_of_places() -> None:
    places, granted = PlaceTable(), threading.Event()
    places.declare("s", 1)
    places.request("place", "s", 0, bool)
    places.request("place", "s", 1, lambda _: granted.set(), "later")

    class Owner:
        def __hash__(self) -> int:  # called while the table holds its lock, where a garbage collection may run, too
            InstanceRegistry(places).leave("s", 0, 5)
            return 1

    places.request("place", "t", 2, bool, Owner())
    assert granted.is_set()


SERVERS, OWNERS = ("s", "t"), ("a", "b", "c")
OPERATIONS = st.one_of(
    st.tuples(st.just("request"), st.sampled_from(OWNERS), st.sampled_from(SERVERS), st.integers(0, 5)),
    st.tuples(st.just("release"), st.sampled_from(OWNERS), st.sampled_from(SERVERS), st.integers(0, 5)),
    st.tuples(st.just("lose"), st.sampled_from(OWNERS), st.just("s"), st.just(0)),
    st.tuples(st.just("declare"), st.just("a"), st.sampled_from(SERVERS), st.integers(1, 4)),
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(OPERATIONS, max_size=60))
def test_no_server_ever_has_more_episodes_than_places(operations: list[tuple[str, str, str, int]]) -> None:
    places = PlaceTable()
    limits = dict.fromkeys(SERVERS, 2)
    held: dict[str, set[tuple[str, int]]] = {server: set() for server in SERVERS}
    waiting: dict[str, list[tuple[str, int]]] = {server: [] for server in SERVERS}
    for server in SERVERS:
        places.declare(server, 2)

    def on_granted(server: str, key: tuple[str, int], _: bool) -> None:
        assert len(held[server]) < limits[server]
        assert waiting[server].pop(0) == key  # first come, first served
        held[server].add(key)

    for name, owner, server, number in operations:
        key = (owner, number)
        if name == "request" and key not in held[server] and key not in waiting[server]:
            waiting[server].append(key)
            places.request("place", server, number, partial(on_granted, server, key), owner)
        elif name == "release":
            held[server].discard(key)
            waiting[server] = [other for other in waiting[server] if other != key]
            places.release("place", server, number, owner)
        elif name == "lose":
            for every in SERVERS:
                held[every] = {other for other in held[every] if other[0] != owner}
                waiting[every] = [other for other in waiting[every] if other[0] != owner]
            places.release_owner(owner)
        elif name == "declare":
            limits[server] = number
            places.declare(server, number)
        for every in SERVERS:
            assert not waiting[every] or len(held[every]) >= limits[every]


def test_the_places_of_agentgyms_servers_are_known() -> None:
    keys = {}
    for env in ("SQLGym", "WebShop", "Maze"):
        dialect = dialect_for(env)
        assert dialect is not None
        keys[env] = places_on(dialect, ServerAddress("http://user:secret@h:1/x/"))
    assert keys == {
        "SQLGym": ("http://h:1/x", 8),
        "WebShop": ("http://h:1/x", 8000),
        "Maze": ("http://h:1/x/maze", None),
    }


async def test_an_instance_that_a_restart_gave_to_another_episode_is_left_alone(rude_server: RudeServer) -> None:
    rude_server.reset(EnvironmentHandler(Maze))
    env = HttpEnvironment(env="Maze", address=ServerAddress(rude_server.url, 10))
    await env.reset(task_index=3)
    await env.step(Action(text="move right"))
    rude_server.reset(EnvironmentHandler(Maze))  # restarted
    async with httpx.AsyncClient(base_url=rude_server.url) as stranger:
        created = (await stranger.post("/maze/create")).json()
        await stranger.post("/maze/reset", json={**created, "game": 8})
    n_requests = len(rude_server.requests)
    with pytest.raises(EnvironmentFault) as caught:
        await env.step(Action(text="move right"))
    await env.cleanup()
    assert [request.path for request in rude_server.requests[n_requests:]] == ["/maze/observation?id=0"]
    place = "…s at position 8, 6. Your current position is at position 1, "
    assert str(caught.value) == (
        f"Maze: GET {rude_server.url}/maze/observation?id=0 shows another episode: line 1 is "
        f"'{place}10. There are walls above you, below you.'; expected '{place}5. There are walls to your right, above "
        "you, below you.'. The server was restarted, or another program uses it and got the same instance: let one "
        "program at a time use it, then run the task again"
    )


@pytest.mark.long
@pytest.mark.timeout(180)
def test_two_runs_on_the_slots_of_one_server_store_no_result_of_another_task(tmp_path: Path) -> None:
    with run_slot_server(8, QuestionHandler) as (server, _):
        profile, script = tmp_path / "p.yaml", tmp_path / "script"
        profile.write_text(
            f"id: p\nenvironments:\n  moderate:\n    - {{name: SQLGym, base_url: '{server.url}', transport: http}}\n"
        )
        script.write_text("SELECT 1\n")
        command = [COMMAND, "--config", str(profile), "--run", "SQLGym", "--agent", "scripted", "--script", str(script)]
        command += ["--repeat", "60", "--concurrency", "8"]
        runs = [
            subprocess.Popen(
                [*command, "--task-index", str(first)],
                cwd=tmp_path,
                env=ENVIRON | {"AGENTGYM_DATA_DIR": f"data-{first}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for first in (100, 1000)
        ]
        outputs = [run.communicate(timeout=120) for run in runs]
    outcomes: Counter[str] = Counter()
    for folder in (tmp_path / "data-100", tmp_path / "data-1000"):
        for path in folder.glob("runs/*/*.json"):
            episode = json.loads(path.read_bytes())
            outcomes[episode["outcome"]] += 1
            assert episode["outcome"] == "error" or episode["reward"] == episode["task_index"], outputs
            assert episode["outcome"] != "error" or "shows another episode" in json.dumps(episode["error"])
    assert outcomes.total() == 2 * 60
    assert outcomes["error"] and set(outcomes) == {"error", "success"}

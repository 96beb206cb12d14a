"""Places and leases: episodes never share an instance, and wait for a place instead of failing."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.envs.http.client import PLACES, places_on, release_lost_owner
from runner.envs.http.dialects import dialect_for
from runner.envs.http.environment import HttpEnvironment, select_dialect
from runner.envs.http.places import InstanceRegistry, PlaceTable
from runner.envs.http.server import ServerAddress, probe_servers
from runner.episode.factory import EpisodeFactory
from runner.types import Action, Limits, Outcome
from tests.support.serving import serve_environments
from tests.support.slot_server import N_STEPS, run_slot_server

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

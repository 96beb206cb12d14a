import base64
import hashlib
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.config import EnvironmentEntry, Environments, Profile
from runner.errors import StoreError
from runner.events.control import ERRORS, NodeHealth
from runner.inference.models import Models
from runner.node import control_requests, file_chunks, handlers
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.node.batch_runner import BatchCallbacks, BatchRunner
from runner.node.env_servers.manager import EnvServerManager
from runner.node.file_chunks import CHUNK_BYTES, EpisodeFiles
from runner.node.handlers import ControlHandler, derived_batch_id
from runner.store import is_ulid
from runner.types import Outcome
from runner.util.files import read_file
from tests.support.episodes import Recording, step

LIMIT = 200
HOSTILE = "\x1b[2J\u202e\u2066\x9b\x00\n"


def test_every_code_that_is_sent_is_documented() -> None:
    source = inspect.getsource(handlers) + inspect.getsource(control_requests)
    sent = set(re.findall(r'(?:RequestRejected\(\s*|code=)"([a-z_]+)"', source))
    assert sent == set(ERRORS)


@given(env=st.text(), stamp=st.integers(0, 2**48 - 1))
def test_a_derived_id_is_a_ulid_of_the_same_moment_and_always_the_same(env: str, stamp: int) -> None:
    battery_id = str(ULID.from_bytes(stamp.to_bytes(6, "big") + bytes(10)))
    derived = derived_batch_id(battery_id, env)
    assert is_ulid(derived)
    assert derived[:10] == battery_id[:10]
    assert derived == derived_batch_id(battery_id, env)
    assert derived != derived_batch_id(battery_id, env + "x")


def test_a_queue_outlives_its_node_and_restarts_nothing_by_itself(tmp_path: Path) -> None:
    queue = BatchQueue(tmp_path / "queue.sqlite")
    batches = [
        QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=n))
        for n in (1, 2)
    ]
    assert [queue.add(batch) for batch in (*batches, batches[0])] == [True, True, False]
    assert queue.set_status(batches[0].batch_id, "running", only=("queued",))
    assert not queue.set_status(batches[0].batch_id, "cancelled", only=("queued", "interrupted"))
    queue.close()
    again = BatchQueue(tmp_path / "queue.sqlite")
    assert again.queued() == []
    assert [batch.status for batch in again.newest(10)] == ["interrupted", "interrupted"]
    assert again.get(batches[1].batch_id) == msgspec.structs.replace(batches[1], status="interrupted")
    again.close()


def test_batches_are_added_together_or_not_at_all(tmp_path: Path) -> None:
    queue = BatchQueue(tmp_path / "queue.sqlite")
    one, two, three = (
        QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", agent="oracle", repeat=n))
        for n in (1, 2, 3)
    )
    assert queue.add(one)
    assert not queue.add(two, one, three)
    assert queue.queued() == [one]
    assert queue.add(two, three)
    assert queue.queued() == [one, two, three]
    queue.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path, node="n", profile="p")
    yield workspace
    workspace.close()


@pytest.fixture
def ask(workspace: Workspace) -> Iterator[Callable[..., Any]]:
    """Asks operations whose node has an environment and whose health fails."""
    queue = BatchQueue(workspace.data_dir / "queue.sqlite")

    def ignore(_: object) -> None: ...

    def fail() -> NodeHealth:
        raise RuntimeError(f"no {HOSTILE} health {'x' * 5000}")

    profile = Profile(id="p", environments=Environments(lightweight=(EnvironmentEntry(name="Maze"),)))
    asked = ControlHandler(
        profile=profile,
        files=EpisodeFiles(workspace.store, workspace.index),
        queue=queue,
        batch_runner=BatchRunner(
            workspace, queue, BatchCallbacks(on_item=ignore, on_record=ignore, on_result=ignore, on_busy=ignore)
        ),
        servers=EnvServerManager(profile, workspace.data_dir / "logs"),
        models=Models.from_settings(profile.agent, {}),
        health=fail,
        stopping=lambda: False,
        shutdown=ignore,
    )

    def ask(op: str, request_id: object = "1", **args: object) -> Any:  # noqa: ANN401
        payload = json.dumps({"id": request_id, "op": op, "args": args}).encode()
        return json.loads(asked.handle(payload))

    yield ask
    queue.close()


def episode_of(workspace: Workspace, size: int) -> Path:
    recording = Recording(workspace.store, workspace.index)
    recording.start()
    recording.play(step(0, observation=[{"role": "user", "content": "x" * size}]))
    recording.end()
    return recording.file


def test_a_large_episode_comes_whole_in_chunks(
    workspace: Workspace, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = episode_of(workspace, 3 << 20)
    content = path.read_bytes()
    assert len(content) > 3 << 20
    reads: list[Path] = []

    def counted(path: Path) -> bytes:
        reads.append(path)
        return read_file(path)

    monkeypatch.setattr("runner.node.file_chunks.read_file", counted)
    got = b""
    while True:
        chunk = ask("episode", episode_id=path.stem, offset=len(got))["result"]
        assert (chunk["total"], chunk["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        part = base64.b64decode(chunk["data"])
        assert len(part) <= CHUNK_BYTES
        got += part
        if not part:
            break
    assert got == content
    assert reads == [path], "it was read as a whole more than once"


def test_a_file_that_changed_is_hashed_again_and_one_that_is_gone_refused(
    workspace: Workspace, ask: Callable[..., Any]
) -> None:
    path = episode_of(workspace, 10)
    ask("episode", episode_id=path.stem)
    path.write_bytes(b"another")
    chunk = ask("episode", episode_id=path.stem, offset=2)["result"]
    assert (chunk["total"], chunk["sha256"]) == (7, hashlib.sha256(b"another").hexdigest())
    assert base64.b64decode(chunk["data"]) == b"other"
    for offset in (-1, 7, 2**62):
        assert ask("episode", episode_id=path.stem, offset=offset)["result"]["data"] == ""
    path.unlink()
    assert "cannot be read" in ask("episode", episode_id=path.stem)["error"]["message"]


def test_only_so_many_hashes_are_kept(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "MAX_CACHED_HASHES", 2)
    files = EpisodeFiles(workspace.store, workspace.index)
    paths = [episode_of(workspace, 1) for _ in range(4)]
    for path in (*paths, *paths):
        assert files.chunk(path.stem, 0).data == path.read_bytes()
    with pytest.raises(StoreError, match="this node has no episode"):
        files.chunk(str(ULID()), 0)


BATCH = str(ULID())


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("start", {"batch_id": "TEXT", "envs": ["Maze"]}),
        ("start", {"batch_id": BATCH, "envs": ["TEXT"]}),
        ("start", {"batch_id": BATCH, "envs": ["Maze"], "agent": "TEXT"}),
        ("start", {"batch_id": BATCH, "envs": ["Maze"], "model": "TEXT"}),
        ("start", {"batch_id": BATCH, "envs": ["Maze"], "TEXT": 1}),
        ("cancel", {"batch_id": "TEXT"}),
        ("pause", {"episode_id": "TEXT"}),
        ("submit_action", {"episode_id": "TEXT", "step": 0, "action": "TEXT"}),
        ("episode", {"episode_id": "TEXT"}),
        ("TEXT", {}),
        ("health", {}),
    ],
)
@pytest.mark.parametrize("text", [HOSTILE, "x" * 30_000, HOSTILE * 1000], ids=["hostile", "large", "both"])
def test_what_an_error_repeats_is_short_and_visible(
    ask: Callable[..., Any], text: str, op: str, args: dict[str, object]
) -> None:
    filled = json.loads(json.dumps(args).replace("TEXT", json.dumps(text)[1:-1]))
    reply = ask(op.replace("TEXT", text), **filled)
    message = reply["error"]["message"]
    assert message
    assert len(message) <= LIMIT
    assert message.isprintable()


@pytest.mark.parametrize("request_id", ["x" * (LIMIT + 1), HOSTILE, "a\tb"])
def test_an_id_that_is_not_repeated_as_it_is_is_refused(ask: Callable[..., Any], request_id: str) -> None:
    reply = ask("list", request_id)
    assert (reply["ok"], reply["error"]["code"]) == (False, "bad_request")
    assert len(reply["id"]) <= LIMIT
    assert reply["id"].isprintable()
    assert ask("list", "y" * LIMIT)["id"] == "y" * LIMIT


@pytest.mark.parametrize(
    "other", [{"envs": ["Wordle"]}, {"envs": ["Maze", "Wordle"]}, {"agent": "random"}, {"repeat": 3}, {"max_rounds": 2}]
)
@pytest.mark.parametrize("resume", [True, False])
def test_a_known_id_stands_for_the_same_request_only(
    ask: Callable[..., Any], other: dict[str, object], resume: bool
) -> None:
    asked = {"batch_id": str(ULID()), "envs": ["Maze"], "agent": "oracle", "repeat": 2}
    started = ask("start", **asked)["result"]
    assert ask("start", **{**asked, "envs": ["maze"], "agent": "Oracle"})["result"] == started
    refused = ask("start", **{**asked, **other, "resume": resume})["error"]
    (name,) = other
    assert (refused["code"], refused["hint"]) == ("refused", "use a new batch_id for a different request")
    assert f"differs in {name}" in refused["message"]


def test_what_a_killed_node_has_played_is_counted_by_its_files(workspace: Workspace, ask: Callable[..., Any]) -> None:
    batch_id = str(ULID())
    for outcome in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.INTERRUPTED):
        recording = Recording(workspace.store, workspace.index, batch_id=batch_id)
        recording.start()
        recording.end(outcome=outcome)
    ask("start", batch_id=batch_id, envs=["Maze"], agent="oracle", repeat=5)
    BatchQueue(workspace.data_dir / "queue.sqlite").close()  # as the next node opens it
    (listed,) = ask("list")["result"]["batches"]
    assert (listed["status"], listed["n_done"], listed["n_planned"]) == ("interrupted", 2, 5)


def test_a_failure_of_ours_is_answered_logged_and_ends_nothing(
    ask: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "runner"):
        reply = ask("health")
    assert (reply["id"], reply["error"]["code"]) == ("1", "internal")
    assert "RuntimeError: no ␛[2J" in reply["error"]["message"]
    assert "answering a request failed: RuntimeError" in caplog.text
    assert ask("list")["ok"]

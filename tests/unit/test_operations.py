import inspect
import re
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from runner.events.control import ERRORS
from runner.node import operations
from runner.node.operations import derived_batch_id
from runner.node.queue import BatchQueue, QueuedBatch
from runner.spec import BatchSpec
from runner.store import is_id


def test_every_code_that_is_sent_is_documented() -> None:
    source = inspect.getsource(operations)
    sent = set(re.findall(r'(?:Refused\(\s*|code=)"([a-z_]+)"', source))
    assert sent == set(ERRORS)


@given(env=st.text(), stamp=st.integers(0, 2**48 - 1))
def test_a_derived_id_is_a_ulid_of_the_same_moment_and_always_the_same(env: str, stamp: int) -> None:
    battery_id = str(ULID.from_bytes(stamp.to_bytes(6, "big") + bytes(10)))
    derived = derived_batch_id(battery_id, env)
    assert is_id(derived)
    assert derived[:10] == battery_id[:10]
    assert derived == derived_batch_id(battery_id, env)
    assert derived != derived_batch_id(battery_id, env + "x")


def test_a_queue_outlives_its_node_and_restarts_nothing_by_itself(tmp_path: Path) -> None:
    queue = BatchQueue(tmp_path / "queue.sqlite")
    batches = [QueuedBatch(batch_id=str(ULID()), battery_id=None, spec=BatchSpec(env="Maze", repeat=n)) for n in (1, 2)]
    assert [queue.add(batch) for batch in (*batches, batches[0])] == [True, True, False]
    assert queue.set_status(batches[0].batch_id, "running", only=("queued",))
    assert not queue.set_status(batches[0].batch_id, "cancelled", only=("queued", "interrupted"))
    queue.close()
    again = BatchQueue(tmp_path / "queue.sqlite")
    assert again.waiting() == []
    assert [batch.status for batch in again.newest(10)] == ["interrupted", "interrupted"]
    assert again.get(batches[1].batch_id) == msgspec.structs.replace(batches[1], status="interrupted")
    again.close()

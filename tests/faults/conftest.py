from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.events.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path, "node-1")
    made.start()
    yield made
    made.stop()

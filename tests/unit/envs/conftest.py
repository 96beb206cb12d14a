from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rude_env_server import RudeServer, run_rude_server


@pytest.fixture(scope="module")
def rude_server() -> Iterator[RudeServer]:
    """A server whose replies each test defines."""
    with run_rude_server() as server:
        yield server

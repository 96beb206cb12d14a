from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.batch.workspace import Workspace
from tests.conftest import Install


@pytest.fixture
def workspace(tmp_path: Path, install: Install) -> Iterator[Workspace]:
    install(envs={"Counter": "tests.support.fakes:Counter"}, agents={"up": "tests.support.fakes:UpAgent"})
    workspace = Workspace(tmp_path / "data", node="test", profile="p1")
    yield workspace
    workspace.close()

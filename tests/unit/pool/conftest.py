from __future__ import annotations

import pytest

from runner.batch.workspace import Workspace
from tests.conftest import Install


@pytest.fixture
def workspace(workspace: Workspace, install: Install) -> Workspace:
    install(envs={"Counter": "tests.support.fakes:Counter"}, agents={"up": "tests.support.fakes:UpAgent"})
    return workspace

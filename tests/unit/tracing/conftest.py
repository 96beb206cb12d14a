from __future__ import annotations

from pathlib import Path

import pytest

from runner.tracing import PerfettoFile


@pytest.fixture
def trace_file(tmp_path: Path) -> PerfettoFile:
    return PerfettoFile(tmp_path / "traces" / "batch.pftrace")

"""Builds a library that stands in for the one of NVIDIA's driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")


def build_nvml(folder: Path) -> Path:
    """Build ``libnvidia-ml.so.1`` in a folder; skip the test without a C compiler."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("install a C compiler (cc) to build a library in place of the NVIDIA driver's")
    path = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True, timeout=60)
    return path


def nvml_environ(library: Path, fault: str = "") -> dict[str, str]:
    """Return the environment of a process that loads the library, with this fault."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NVML_STUB": fault}

"""Where ARE is installed, how to install it, and its process's variables; nothing here imports or starts ARE."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from runner.config import ARESettings

DISTRIBUTION = "meta-agents-research-environments"
VERSION = "1.2.0"
INSTALL_COMMAND = f"python3 -m venv .venv-are && .venv-are/bin/pip install {DISTRIBUTION}=={VERSION}"
"""Command that installs ARE into a virtual environment of its own, about 600 MB."""
ADVICE = f"Install it with: {INSTALL_COMMAND}; then set are: {{python: .venv-are/bin/python}} in the profile"
OFFLINE_SCENARIOS = (
    "scenario_tutorial",
    "scenario_apps_tutorial",
    "scenario_events_tutorial",
    "scenario_find_image_file",
    "scenario_validation_tutorial",
)
"""ARE's scenarios that need neither a model nor a download; ``are:offline`` plays them in this order."""
_CHECK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('are.simulation') is None)"
_CHECK_TIMEOUT_S = 60.0


def interpreter(settings: ARESettings) -> str:
    """Return the path of the Python interpreter that runs ARE: that of the profile, else this process's."""
    if settings.python is None:
        return sys.executable
    return os.path.abspath(os.path.expanduser(settings.python))  # noqa: PTH100, PTH111 - resolving would leave the venv


def find_problem(settings: ARESettings) -> str | None:
    """Return why ARE cannot be started; None if it can. Takes a fraction of a second, later nothing until a change."""
    if settings.python is None:
        installed = importlib.util.find_spec("are") is not None
        return None if installed else f"The package {DISTRIBUTION} is not installed. {ADVICE}"
    python = interpreter(settings)
    if not os.access(python, os.X_OK):
        return f"are.python of the profile is {python}, which is no program. {ADVICE}"
    return (
        None
        if _has_are(python, packages_version(python))
        else f"The interpreter {python} has no package {DISTRIBUTION}. {ADVICE}"
    )


def worker_environment(python: str, scratch: Path) -> dict[str, str]:
    """Return the variables of ARE's process: none of this process's, which may be secret, except the path.

    Args:
        python: the interpreter; programs next to it are found, too.
        scratch: folder for temporary files and caches.
    """
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": path,
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def packages_version(python: str) -> tuple[int, ...]:
    """Return a value that changes when a package is installed into the virtual environment of an interpreter."""
    with contextlib.suppress(OSError):
        folders = Path(python).parents[1].glob("lib/python3*/site-packages")
        return tuple(folder.stat().st_mtime_ns for folder in folders)
    return ()


@functools.cache
def _has_are(python: str, _version: tuple[int, ...]) -> bool:
    try:
        completed = subprocess.run(
            [python, "-I", "-c", _CHECK],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return completed.returncode == 0

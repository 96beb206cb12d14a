"""Where ARE is installed, how to install it, and which scenarios it has, without importing ARE or starting its process.

The ids are those that ``scenario_scan`` finds; ``are:<scenario>`` is checked here. A package can also register ids that
are no literals, so where packages add scenarios, an unknown id is left to ARE's process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec

from runner.config import ARESettings
from runner.envs.are.scenario_scan import DISTRIBUTION, scan
from runner.errors import ConfigError
from runner.plugins import ENVS, closest_name, family_and_id, find

FAMILY = "are"
OFFLINE_ID = "offline"
"""Id that stands for all of ``OFFLINE_SCENARIOS``, one task each."""
OFFLINE = f"{FAMILY}:{OFFLINE_ID}"
VERSION = "1.2.0"
INSTALL_COMMAND = f"python3 -m venv .venv-are && .venv-are/bin/pip install {DISTRIBUTION}=={VERSION}"
"""Command that installs ARE into a virtual environment of its own, about 600 MB."""
NOT_INSTALLED = f"ARE is not installed: {INSTALL_COMMAND}"
"""Cause and remedy in one line, for lists; ``ScenarioCatalog.problem`` has the whole advice."""
ADVICE = f"Install it with: {INSTALL_COMMAND}; then set are: {{python: .venv-are/bin/python}} in the profile"
OFFLINE_SCENARIOS = (
    "scenario_tutorial",
    "scenario_apps_tutorial",
    "scenario_events_tutorial",
    "scenario_find_image_file",
    "scenario_validation_tutorial",
)
"""ARE's scenarios that need neither a model nor a download; ``are:offline`` plays them in this order."""
_SCAN = Path(__file__).with_name("scenario_scan.py")
_SCAN_TIMEOUT_S = 60.0


def interpreter(settings: ARESettings) -> str:
    if settings.python is None:
        return sys.executable
    return os.path.abspath(os.path.expanduser(settings.python))  # noqa: PTH100, PTH111 - resolving would leave the venv


def process_environment(python: str, scratch: Path) -> dict[str, str]:
    """None of this process's variables, which may be secret, except the path; ``scratch`` is for temporary files."""
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


class ScenarioCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The scenarios of an installation of ARE.

    Attributes:
        version: version of ARE; None if it is not installed or its version is unknown.
        scenarios: names ``are:<scenario>`` in alphabetical order, those of other packages last.
        is_complete: whether no other package adds scenarios, whose ids may be unknown.
        problem: why ARE cannot be started; None if it can.
    """

    installed: bool = False
    version: str | None = None
    scenarios: tuple[str, ...] = ()
    is_complete: bool = True
    problem: str | None = None

    @property
    def summary(self) -> str:
        if not self.installed:
            return NOT_INSTALLED
        names = ", ".join(name.removeprefix(f"{FAMILY}:") for name in self.scenarios)
        return f"{self.title}, {len(self.scenarios)} scenarios: {names}"

    @property
    def title(self) -> str:
        return f"ARE {self.version or 'of unknown version'}"


def read_catalog(settings: ARESettings) -> ScenarioCatalog:
    """Another interpreter takes a fraction of a second, and is read once per change of its packages."""
    python = interpreter(settings)
    if settings.python is None:
        catalog, problem = msgspec.convert(scan(), ScenarioCatalog), f"The package {DISTRIBUTION} is not installed"
    elif os.access(python, os.X_OK):
        catalog = _scan_with(python, packages_version(python))
        problem = f"The interpreter {python} has no package {DISTRIBUTION}"
    else:
        catalog, problem = ScenarioCatalog(), f"are.python of the profile is {python}, which is no program"
    return catalog if catalog.installed else ScenarioCatalog(problem=f"{problem}. {ADVICE}")


@cache
def _scan_with(python: str, _version: tuple[int, ...]) -> ScenarioCatalog:
    try:
        completed = subprocess.run(
            [python, "-I", str(_SCAN)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SCAN_TIMEOUT_S,
            check=True,
        )
        return msgspec.json.decode(completed.stdout, type=ScenarioCatalog)
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError):
        return ScenarioCatalog()


def is_are(env: str) -> bool:
    return (family_and_id(ENVS, env) or ())[:1] == (FAMILY,)


def scenario_problem(env: str, catalog: ScenarioCatalog) -> str | None:
    if catalog.problem is not None:
        return catalog.problem
    name = find(ENVS, env).name
    if name in (OFFLINE, *catalog.scenarios) or not catalog.is_complete:
        return None
    known = [*catalog.scenarios, OFFLINE]
    closest = closest_name(name, known) or closest_name(name.replace(":", ":scenario_"), known)
    question = f"Did you mean {closest}? " if closest else ""
    return f"ARE has no scenario {name.partition(':')[2]!r}. {question}Scenarios: {', '.join(known)}"


def check_scenario(env: str, settings: ARESettings) -> None:
    """Raises ``ConfigError`` if ARE is not installed, or has no such scenario; it suggests the closest one."""
    if (problem := scenario_problem(env, read_catalog(settings))) is not None:
        raise ConfigError(problem)


def is_offline(name: str) -> bool:
    return name.partition(":")[2] in OFFLINE_SCENARIOS

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from runner import plugins
from runner.batch.workspace import Workspace
from runner.store import EpisodeIndex, EpisodeStore, open_index
from tests.support.examples import examples
from tests.support.nats_server import NatsAccount, NatsServer, SharedNatsServer

pytest_plugins = ["tests.support.forks"]

# The time of an example depends on the load of the machine.
UNTIMED = settings(max_examples=examples(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("untimed", UNTIMED)
settings.load_profile("untimed")

Install = Callable[..., None]

OPTIONAL = tuple(Path(__file__).parent / name for name in ("are", "ray"))
"""Folders whose tests need an extra; they are collected only if the command line names them."""
OPTIONAL_LIMIT_S = 170.0
"""Seconds that a test there may take, since the first one loads ARE or starts a cluster."""


def _optional_folder(path: Path) -> Path | None:
    return next((folder for folder in OPTIONAL if path == folder or folder in path.parents), None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if (folder := _optional_folder(collection_path)) is None:
        return None
    named = [Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(_optional_folder(path) == folder for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    optional = {path for path in {item.path for item in items} if _optional_folder(path) is not None}
    for item in items:
        if item.path in optional:
            item.add_marker(pytest.mark.timeout(OPTIONAL_LIMIT_S))


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: hardly anything made then is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never imported modules; this saves a sixth of the UI tests' time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _duration_key(config: pytest.Config) -> str | None:
    """Return where the seconds of the last run are kept; None if not the whole suite runs, or in a worker process."""
    is_whole = config.args == config.getini("testpaths") and not hasattr(config, "workerinput")
    return f"agentgym/seconds of {config.option.markexpr!r}" if is_whole and hasattr(config, "cache") else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print how long the suite will take; each line of dots then ends with the share that is done."""
    session.config.stash[STARTED] = time.monotonic()
    if (key := _duration_key(session.config)) is not None and session.config.cache is not None:
        last_s = session.config.cache.get(key, None)
        known = f"{last_s // 60:.0f} min {last_s % 60:.0f} s as the last time here" if last_s else "a few minutes"
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"These tests take {known}; each line ends with the share that is done.")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep how long the suite took."""
    if (key := _duration_key(session.config)) is not None and exitstatus in (0, 1) and session.config.cache is not None:
        session.config.cache.set(key, time.monotonic() - session.config.stash[STARTED])


STARTED = pytest.StashKey[float]()


@pytest.fixture(scope="session", autouse=True)
def _data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the state of commands without ``--data-dir`` out of the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Register environments and agents as an installed distribution does, with metadata on the path."""

    def add(envs: dict[str, str] | None = None, agents: dict[str, str] | None = None, name: str = "fakes") -> None:
        folder = tmp_path / f"installed {name}" / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        sections = {"agentgym.envs": envs or {}, "agentgym.agents": agents or {}}
        lines = [
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in sections.items()
        ]
        (folder / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(folder.parent))
        plugins._entry_points.cache_clear()

    yield add
    plugins._entry_points.cache_clear()


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    """A state directory without episodes."""
    return EpisodeStore(tmp_path / "data")


@pytest.fixture
def index(store: EpisodeStore) -> Iterator[EpisodeIndex]:
    with closing(open_index(store)) as index:
        yield index


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with closing(Workspace(tmp_path / "data", node="test", profile="p1")) as workspace:
        yield workspace


@pytest.fixture(scope="session")
def shared_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNatsServer]:
    with SharedNatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def bus(shared_nats_server: SharedNatsServer) -> NatsAccount:
    """An empty account on the server that all tests of a worker share, for tests that neither stop nor configure it."""
    return shared_nats_server.new_account()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A separate server with JetStream, for tests that stop, pause, restart, reload or inspect it."""
    with NatsServer(tmp_path / "nats") as server:
        yield server

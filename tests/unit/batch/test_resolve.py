"""A batch after its resolution: values of the profile and the request, and no further look-up of names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runner import plugins
from runner.batch.batch import Batch
from runner.batch.spec import RUN_FILES, SLOT_FILES, BatchRequest, place_batch, resolve_batch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, EnvironmentEntry, Environments, EpisodeSettings, Profile, load_profile
from runner.envs.http.server import ServerAddress
from runner.envs.placement import Placement
from runner.errors import ConfigError
from runner.plugins import Plugin
from runner.results.evaluation import AGENTEVAL
from runner.types import Limits
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.fakes import Counter

PROFILE = Profile(
    id="p",
    agent=AgentSettings(model="small", max_unparsed=7),
    episode=EpisodeSettings(concurrent=3, workers=2, max_rounds=9, max_duration_sec=8.0, wait_sec=5.0),
    environments=Environments(lightweight=(EnvironmentEntry(name="maze", port=1),)),
)


def test_what_a_request_leaves_out_comes_from_the_profile() -> None:
    batch = resolve_batch(PROFILE, BatchRequest(env="MAZE"))
    spec = batch.spec
    assert (spec.env, spec.agent, spec.model, spec.concurrency, spec.workers) == ("Maze", "react", "small", 3, 2)
    assert spec.limits == batch.setup.limits == Limits(9, 8.0, 7)
    assert (batch.wait_s, batch.setup.models) == (5.0, PROFILE.agent)
    request = BatchRequest(env="Maze", agent="Oracle", concurrency=1, workers=0, max_rounds=2, max_duration_sec=1.0)
    requested = resolve_batch(PROFILE, request)
    assert (requested.spec.agent, requested.spec.model, requested.setup.models) == ("oracle", None, None)
    assert (requested.spec.concurrency, requested.spec.workers) == (1, 0)
    assert requested.spec.limits == Limits(2, 1.0, 7)


def test_without_a_value_only_a_model_in_an_embedded_environment_records_pictures() -> None:
    def records(world: bool | None, agent: str, placement: Placement) -> bool:
        profile = Profile(id="p", episode=EpisodeSettings(world=world))
        return resolve_batch(profile, BatchRequest(env="Maze", agent=agent)).placed(placement).setup.world

    embedded, served = Placement(), Placement(transport="http", address=ServerAddress("http://127.0.0.1:1"))
    players = [("react", embedded), ("react", served), ("oracle", embedded), ("random", served)]
    assert [records(None, *player) for player in players] == [True, False, False, False]
    assert [records(chosen, *player) for chosen in (True, False) for player in players] == [True] * 4 + [False] * 4


def test_the_limits_of_an_environment_are_those_of_its_entry_and_hard() -> None:
    own = EnvironmentEntry(name="Maze", max_rounds=30, max_duration_sec=20.0)
    profile = msgspec.structs.replace(PROFILE, environments=Environments(lightweight=(own,)))
    for env, limits in (("maze", Limits(30, 20.0, 7)), ("Wordle", Limits(9, 8.0, 7))):
        assert resolve_batch(profile, BatchRequest(env=env, agent="oracle")).spec.limits == limits
        with pytest.raises(ConfigError, match="above the limit"):
            resolve_batch(profile, BatchRequest(env=env, agent="oracle", max_rounds=limits.max_rounds + 1))
    lowered = BatchRequest(env="Maze", agent="oracle", max_rounds=12)
    assert resolve_batch(profile, lowered).spec.limits == Limits(12, 20.0, 7)


def test_the_profile_agenteval_has_the_rounds_of_agentgyms_scripts(tmp_path: Path) -> None:
    profile = load_profile("agenteval", environ={}, cwd=tmp_path)
    rounds = {entry.name.lower(): entry.max_rounds for _, entry in profile.tiered_entries()}
    assert rounds == {env: setting.rounds for env, setting in AGENTEVAL.items()}


def test_no_name_is_looked_up_after_the_resolution(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    request = BatchRequest(env="Maze", agent="oracle", workers=0)
    batch = resolve_batch(Profile(id="p"), request)

    def refuse(*_: object) -> None:
        raise AssertionError("a name was looked up")

    for function in ("_entry_points", "family_and_id"):
        monkeypatch.setattr(plugins, function, refuse)
    result = Batch(place_batch(batch, RUN_FILES), workspace).run()
    assert (result.outcomes, result.problems) == ({"success": 1}, [])


def test_a_worker_process_imports_by_the_entry_points_that_the_driver_found(workspace: Workspace) -> None:
    batch = resolved_batch(env="Maze", agent="oracle", workers=1)
    fakes = {
        "env": Plugin("Unknown", "tests.support.fakes:Counter"),
        "agent": Plugin("up", "tests.support.fakes:UpAgent"),
    }
    result = Batch(msgspec.structs.replace(batch, **fakes), workspace).run()
    assert (result.outcomes, result.problems) == ({"success": 1}, [])


class NeedsGoal(Counter):
    def __init__(self, *, goal: int, speed: int) -> None:
        raise NotImplementedError


class OneMode(Counter):
    def __init__(self) -> None:
        super().__init__()


def test_an_environment_whose_constructor_does_not_fit_is_refused_where_it_is_embedded(install: Install) -> None:
    install(envs={"Needy": f"{__name__}:NeedsGoal", "Strict": f"{__name__}:OneMode"})
    needy = resolve_batch(Profile(id="p"), BatchRequest(env="Needy", agent="random"))
    with pytest.raises(ConfigError, match=r"environment Needy does not fit: .*NeedsGoal\(.*argument: 'goal'\. A run"):
        place_batch(needy, RUN_FILES)
    assert (
        needy.placed(Placement(transport="http", address=ServerAddress("http://127.0.0.1:1"))).setup.address is not None
    )
    strict = resolve_batch(Profile(id="p"), BatchRequest(env="Strict", agent="random"))
    with pytest.raises(ConfigError, match=r"got an unexpected keyword argument 'mode'\. A run passes no .*--compat"):
        strict.placed(Placement(mode="compat"))


LIMITED = f"""
import sys
from runner.batch import spec as batch_spec
from runner.cli import main
batch_spec.open_file_limit = lambda: {RUN_FILES + SLOT_FILES}
sys.exit(main(sys.argv[1:]))
"""


def test_a_battery_plays_the_environments_that_fit_the_open_files(tmp_path: Path) -> None:
    profile = {"id": "p", "environments": {"lightweight": [{"name": "SQLGym"}, {"name": "Maze"}]}}
    (tmp_path / "p.yaml").write_text(json.dumps(profile), encoding="utf-8")
    options = ["--battery", "lightweight", "--agent", "oracle", "--config", "./p.yaml"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Skipped: No episode of SQLGym fits the limit of 38 open files" in done.stderr
    assert "Maze" in done.stdout and "SQLGym" not in done.stdout

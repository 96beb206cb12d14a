"""ARE's scenarios without ARE: listed from source files, checked by name, or the command that installs ARE."""

from __future__ import annotations

import json
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

from runner.batch.spec import BatchRequest
from runner.cli import main
from runner.config import ARESettings, EnvironmentEntry, Environments, Profile
from runner.envs.are.catalog import ADVICE, INSTALL_COMMAND, read_catalog
from runner.envs.are.scenario_scan import scan
from runner.envs.availability import availability_of
from runner.envs.placement import resolve_environment
from runner.errors import ConfigError
from runner.inference.profile_models import Models
from runner.node.preflight import PlannedRun, preflight
from tests.support.command import REPOSITORY

OWN: Final = ("scenario_tutorial", "scenario_mcp_demo")
_EXPLODE: Final = "raise SystemExit('a scenario was imported')\n"


def create_installation(folder: Path, *, added: str | None = None) -> Path:
    """Create the environment and return its interpreter; ``added``: id of a scenario that another package adds."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    scenarios = packages / "are" / "simulation" / "scenarios"
    for name in OWN:
        _write(scenarios / name / "scenario.py", f'@register_scenario("{name}")\nclass Scenario: ...\n{_EXPLODE}')
    _write(scenarios / "utils" / "registry.py", f'@register_scenario("not_a_scenario")\nclass Sample: ...\n{_EXPLODE}')
    _write(scenarios / "broken" / "scenario.py", "@register_scenario('x'\n")
    _write(packages / "are" / "__init__.py", "")
    _write(packages / "are" / "simulation" / "__init__.py", _EXPLODE)
    _write_metadata(packages, "meta_agents_research_environments", "1.2.0")
    if added is not None:
        _write(packages / "lab" / "__init__.py", _EXPLODE)
        _write(packages / "lab" / "all.py", f'@registry.register("{added}")\nclass Own: ...\n{_EXPLODE}')
        _write_metadata(packages, "lab", "1", "[are.simulation.scenarios]\nlab = lab.all:register\n")
    return folder / "bin" / "python"


def _write_metadata(packages: Path, name: str, version: str, entry_points: str = "") -> None:
    folder = packages / f"{name}-{version}.dist-info"
    _write(folder / "METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    _write(folder / "entry_points.txt", entry_points)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


HERE = ARESettings()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> ARESettings:
    return ARESettings(python=str(create_installation(tmp_path_factory.mktemp("are"))))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> ARESettings:
    return ARESettings(python=str(create_installation(tmp_path_factory.mktemp("lab"), added="scenario_lab")))


def profile_with(settings: ARESettings, *envs: str) -> Profile:
    entries = tuple(EnvironmentEntry(name=env) for env in envs)
    return Profile(id="lab", are=settings, environments=Environments(lightweight=entries))


def write_profile(folder: Path, settings: ARESettings, env: str) -> str:
    path = folder / "lab.yaml"
    are = {} if settings.python is None else {"python": settings.python}
    content = {"id": "lab", "are": are, "environments": {"lightweight": [{"name": env}]}}
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_scenarios_are_read_from_the_source_of_another_interpreter(installed: ARESettings) -> None:
    catalog = read_catalog(installed)
    assert catalog.scenarios == ("are:scenario_mcp_demo", "are:scenario_tutorial")
    assert (catalog.version, catalog.is_complete, catalog.problem) == ("1.2.0", True, None)
    assert catalog.summary == "ARE 1.2.0, 2 scenarios: scenario_mcp_demo, scenario_tutorial"


def test_what_is_installed_later_is_found_without_a_restart(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False, symlinks=True)
    settings = ARESettings(python=str(tmp_path / "bin" / "python"))
    assert not read_catalog(settings).installed
    create_installation(tmp_path)
    assert len(read_catalog(settings).scenarios) == 2
    create_installation(tmp_path, added="scenario_lab")
    assert "are:scenario_lab" in read_catalog(settings).scenarios


def test_scenarios_of_other_packages_are_listed_and_ids_that_are_no_literals_are_left_to_the_process(
    extended: ARESettings,
) -> None:
    assert read_catalog(extended).scenarios[-1] == "are:scenario_lab"
    assert resolve_environment(profile_with(extended), "are:drawn_at_import").name == "are:drawn_at_import"


@pytest.mark.skipif(scan()["installed"], reason="uninstall ARE here; `make test-are` has an environment of its own")
def test_without_the_package_lists_and_errors_give_the_command_that_installs_it() -> None:
    assert not read_catalog(HERE).installed
    found = availability_of(EnvironmentEntry(name="are:scenario_tutorial"), None)
    assert (found.status, found.playable) == ("down", False)
    assert found.cause == f"ARE is not installed: {INSTALL_COMMAND}"
    with pytest.raises(ConfigError, match="is not installed") as raised:
        resolve_environment(profile_with(HERE), "are:scenario_tutorial")
    assert ADVICE in str(raised.value)
    assert "are" not in sys.modules


@pytest.mark.parametrize(
    ("env", "suggested"),
    [
        ("are:scenario_tutorail", "Did you mean are:scenario_tutorial?"),
        ("ARE:tutorial", "Did you mean are:scenario_tutorial?"),
        ("are:gaia2", "Scenarios: are:scenario_mcp_demo, are:scenario_tutorial, are:offline"),
    ],
)
def test_an_unknown_scenario_is_an_error_with_a_suggestion(installed: ARESettings, env: str, suggested: str) -> None:
    with pytest.raises(ConfigError, match="ARE has no scenario") as raised:
        resolve_environment(profile_with(installed), env)
    assert suggested in str(raised.value)
    found = availability_of(EnvironmentEntry(name=env), None, installed)
    assert not found.playable and suggested in (found.cause or "")


def test_the_availability_of_a_scenario_notes_how_many_there_are(installed: ARESettings) -> None:
    offline, one = (
        availability_of(EnvironmentEntry(name=name), None, installed)
        for name in ("are:offline", "ARE:scenario_tutorial")
    )
    assert offline.note == "ARE 1.2.0, 2 scenarios: scenario_mcp_demo, scenario_tutorial"
    assert (one.status, one.note) == ("embedded", "ARE 1.2.0, 1 of 2 scenarios")


def test_list_envs_prints_the_scenarios(
    installed: ARESettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_profile(tmp_path, installed, "are:offline")
    assert main(["--list-envs", "--config", config]) == 0
    assert (
        "2 scenarios of ARE 1.2.0: are:scenario_mcp_demo, are:scenario_tutorial. are:offline plays the 1 that need"
        in capsys.readouterr().out
    )
    assert main(["--list-envs", "--json", "--config", config]) == 0
    listed = json.loads(capsys.readouterr().out)["are"]
    assert (listed["installed"], listed["scenarios"]) == (True, ["are:scenario_mcp_demo", "are:scenario_tutorial"])


def test_preflight_and_the_list_name_the_command_that_installs_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ARESettings(python=str(tmp_path / "no" / "python"))
    profile = profile_with(missing, "are:offline")
    request = BatchRequest(agent="oracle")
    plan = PlannedRun(profile=profile, data_dir=tmp_path / "data", request=request, egress=lambda: None)
    checks = preflight(plan, Models(profile.agent, {}))
    (check,) = [check for check in checks if check.what == "environment"]
    assert (check.state, check.hint) == ("fail", ADVICE)
    assert INSTALL_COMMAND in (check.cause or "")
    assert main(["--list-envs", "--config", write_profile(tmp_path, missing, "are:offline")]) == 0
    assert f"are.python of the profile is {tmp_path / 'no' / 'python'}, which is no program" in capsys.readouterr().out


def test_the_command_that_installs_are_is_that_of_the_documentation() -> None:
    assert f"\n{INSTALL_COMMAND} " in (REPOSITORY / "docs/build/environments.md").read_text(encoding="utf-8")


def test_preflight_checks_a_scenario_and_notes_the_version(installed: ARESettings, tmp_path: Path) -> None:
    profile = profile_with(installed, "are:scenario_tutorial", "are:nothing")
    request = BatchRequest(agent="random")
    plan = PlannedRun(profile=profile, data_dir=tmp_path / "data", request=request, egress=lambda: None)
    checks = {check.name: check for check in preflight(plan, Models(profile.agent, {}))}
    assert checks["are:scenario_tutorial"].detail == "embedded, ARE 1.2.0, 1 of 2 scenarios"
    assert (checks["are:nothing"].state, "ARE has no scenario" in str(checks["are:nothing"].cause)) == ("warn", True)

import sys
from pathlib import Path

import pytest

from runner import plugins
from runner.errors import ConfigError
from tests.conftest import Install


def test_built_in_environments_and_agents_are_entry_points() -> None:
    assert {"BabyAI", "Maze", "TextCraft", "WebShop", "Wordle"} <= set(plugins.registered_names(plugins.ENVS))
    assert {"oracle", "random", "scripted"} <= set(plugins.registered_names(plugins.AGENTS))
    assert plugins.find(plugins.ENVS, "bAbYaI").name == "BabyAI"


def test_an_unknown_name_suggests_the_most_similar_one() -> None:
    with pytest.raises(ConfigError, match=r"no environment named 'wordel'\. Did you mean Wordle\?"):
        plugins.find(plugins.ENVS, "wordel")
    with pytest.raises(ConfigError, match=r"no agent named 'zzzz'\. Available: .*oracle"):
        plugins.find(plugins.AGENTS, "zzzz")


def test_a_malformed_entry_point_harms_only_itself(install: Install) -> None:
    install(envs={"Broken": "???", "Counter": "tests.support.fakes:Counter"})
    assert plugins.load(plugins.ENVS, "Counter").__name__ == "Counter"
    with pytest.raises(ConfigError, match=r"Broken is registered as \?\?\? but cannot be loaded"):
        plugins.load(plugins.ENVS, "Broken")


def test_a_package_with_unreadable_entry_points_harms_only_itself(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter"})
    package = Path(sys.path[0], "damaged-1.0.dist-info")
    package.mkdir()
    (package / "entry_points.txt").write_bytes(b"[agentgym.envs]\nOther = \xff:x\n")
    plugins._entry_points.cache_clear()
    assert plugins.load(plugins.ENVS, "Counter").__name__ == "Counter"


def test_an_installed_distribution_adds_plugins(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter"})
    assert plugins.find(plugins.ENVS, "counter").config(goal=2) == {
        "_target_": "tests.support.fakes.Counter",
        "goal": 2,
    }
    assert plugins.load(plugins.ENVS, "counter").__name__ == "Counter"


def test_reserved_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="leading underscore"):
        plugins.find(plugins.ENVS, "Maze").config(_partial_=True)


def test_a_plugin_that_cannot_be_imported_is_named(install: Install) -> None:
    install(envs={"Broken": "no_such_module_at_all:Thing"})
    assert "Broken" in plugins.registered_names(plugins.ENVS)
    with pytest.raises(ConfigError, match=r"Broken is registered as no_such_module_at_all:Thing .*ModuleNotFoundError"):
        plugins.load(plugins.ENVS, "Broken")


def test_missing_packages_are_named() -> None:
    assert plugins.missing_packages(["minigrid", "no-such-package", "json"]) == ["no-such-package"]
    assert plugins.missing_packages([""]) == [""]
    assert plugins.installed_versions(["minigrid", "no-such-package"]).keys() == {"minigrid"}


def test_the_names_of_built_in_objects_are_reserved(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install(envs={"maze": "tests.support.fakes:Counter", "Wordle": "tests.support.fakes:Counter"})
    assert plugins.load(plugins.ENVS, "Maze").__module__ == "runner.envs.maze"
    assert plugins.load(plugins.ENVS, "maze").__module__ == "runner.envs.maze"
    assert plugins.load(plugins.ENVS, "Wordle").__name__ == "Wordle"
    assert (
        "maze of fakes (tests.support.fakes:Counter) is ignored: the name is reserved for Maze of agentgym-console"
        in caplog.text
    )
    assert "Wordle of fakes" in caplog.text


def test_a_name_in_two_packages_is_rejected(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter"})
    install(envs={"Counter": "tests.support.fakes:Gated", "Other": "tests.support.fakes:Gated"}, name="other")
    with pytest.raises(ConfigError, match=r"named 'Counter': Counter of \w+ \(.*\) and Counter of \w+ .*Uninstall"):
        plugins.load(plugins.ENVS, "Counter")
    assert plugins.load(plugins.ENVS, "Other").__name__ == "Gated"


def test_the_exact_spelling_takes_precedence(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter", "COUNTER": "tests.support.fakes:Gated"})
    assert plugins.load(plugins.ENVS, "COUNTER").__name__ == "Gated"
    assert plugins.load(plugins.ENVS, "Counter").__name__ == "Counter"
    with pytest.raises(ConfigError, match="More than one environment is named 'counter'"):
        plugins.load(plugins.ENVS, "counter")

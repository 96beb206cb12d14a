import subprocess
import sys

import pytest

from runner import plugins as registry
from runner.errors import ConfigError
from tests.conftest import Install


def test_built_in_names_are_entry_points_like_any_other() -> None:
    assert {"BabyAI", "Maze", "TextCraft", "WebShop", "Wordle"} <= set(registry.names(registry.ENVS))
    assert {"oracle", "random", "scripted"} <= set(registry.names(registry.AGENTS))


def test_a_name_is_found_in_any_case() -> None:
    assert registry.canonical(registry.ENVS, "bAbYaI") == "BabyAI"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no environment named 'wordel'\. Did you mean Wordle\?"):
        registry.canonical(registry.ENVS, "wordel")
    with pytest.raises(ConfigError, match=r"no agent named 'zzzz'\. Known are: .*oracle"):
        registry.canonical(registry.AGENTS, "zzzz")


def test_an_installed_distribution_adds_its_own(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter"})
    assert registry.target(registry.ENVS, "counter", goal=2) == {"_target_": "tests.support.fakes.Counter", "goal": 2}
    assert registry.load(registry.ENVS, "counter").__name__ == "Counter"


def test_reserved_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="leading underscore"):
        registry.target(registry.ENVS, "Maze", _partial_=True)


def test_a_plugin_that_does_not_import_fails_by_its_name(install: Install) -> None:
    install(envs={"Broken": "no_such_module_at_all:Thing"})
    assert "Broken" in registry.names(registry.ENVS)
    with pytest.raises(ConfigError, match=r"Broken is registered as no_such_module_at_all:Thing .*ModuleNotFoundError"):
        registry.load(registry.ENVS, "Broken")


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys; from runner import plugins as registry; registry.names(registry.ENVS); "
        "registry.names(registry.AGENTS); "
        "heavy = {'textual', 'hydra', 'omegaconf', 'minigrid', 'numpy', 'httpx', 'nats', 'perfetto', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_packages_are_named() -> None:
    assert registry.missing_packages(["minigrid", "no-such-package", "json"]) == ["no-such-package"]
    assert registry.versions(["minigrid", "no-such-package"]).keys() == {"minigrid"}


def test_nobody_takes_the_name_of_what_is_built_in(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install(envs={"maze": "tests.support.fakes:Counter", "Wordle": "tests.support.fakes:Counter"})
    assert registry.load(registry.ENVS, "Maze").__module__ == "runner.envs.maze"
    assert registry.load(registry.ENVS, "maze").__module__ == "runner.envs.maze"
    assert registry.load(registry.ENVS, "Wordle").__name__ == "Wordle"
    assert (
        "maze of fakes (tests.support.fakes:Counter) is not used: that name belongs to Maze of agentgym-console"
        in caplog.text
    )
    assert "Wordle of fakes" in caplog.text


def test_a_name_of_two_packages_is_refused_with_both(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter"})
    install(envs={"Counter": "tests.support.fakes:Gated", "Other": "tests.support.fakes:Gated"}, name="rivals")
    with pytest.raises(ConfigError, match=r"named 'Counter': Counter of \w+ \(.*\) and Counter of \w+ .*Uninstall"):
        registry.load(registry.ENVS, "Counter")
    assert registry.load(registry.ENVS, "Other").__name__ == "Gated"


def test_the_exact_spelling_comes_first(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter", "COUNTER": "tests.support.fakes:Gated"})
    assert registry.load(registry.ENVS, "COUNTER").__name__ == "Gated"
    assert registry.load(registry.ENVS, "Counter").__name__ == "Counter"
    with pytest.raises(ConfigError, match="More than one environment is named 'counter'"):
        registry.load(registry.ENVS, "counter")

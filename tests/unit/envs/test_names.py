"""Names that only servers play, and unknown ones: every place answers with names and keys that work."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner import plugins
from runner.config import EnvironmentEntry, Environments, Profile, SkipEntry
from runner.envs.availability import availability_of
from runner.envs.http.dialects import http_names
from runner.envs.names import UnplayableName, did_you_mean, server_only_name, server_only_names, unknown_environment
from runner.envs.placement import resolve_environment
from runner.errors import ConfigError
from runner.node.handlers import MAX_ECHO_CHARS, MAX_HINT_CHARS, to_control_error
from tests.conftest import Install
from tests.support.batches import resolved_batch

KEYS = "- {name: SciWorld, transport: http, port: 8000}"


def profile(*entries: EnvironmentEntry, skip: tuple[SkipEntry, ...] = ()) -> Profile:
    return Profile(id="p", environments=Environments(moderate=entries, skip=skip))


def rejection(env: str, configured: Profile) -> UnplayableName:
    with pytest.raises(UnplayableName) as caught:
        resolve_environment(configured, env)
    return caught.value


def test_the_names_that_only_servers_play_follow_from_the_dialects_and_the_installed_classes(install: Install) -> None:
    names = server_only_names()
    assert {"SciWorld", "WebArena", "SearchQA", "Academia", "Weather"} <= set(names)
    assert set(names) | set(plugins.registered_names(plugins.ENVS)) >= set(http_names())
    assert not set(names) & set(plugins.registered_names(plugins.ENVS))
    assert (server_only_name("sciworld"), server_only_name("maze"), server_only_name("x")) == ("SciWorld", None, None)
    install(envs={"sciworld": "tests.support.fakes:Counter"})
    assert server_only_name("SciWorld") is None


def test_a_name_that_only_servers_play_is_answered_with_the_entry_of_the_profile() -> None:
    error = rejection("sciworld", profile(EnvironmentEntry(name="Maze")))
    assert error.problem == "SciWorld is played only on a server, and the profile has no server for it"
    assert all(text in error.hint for text in (KEYS, "the default of AgentGym's servers", "base_url: http://HOST:PORT"))
    assert str(error) == f"{error.problem}. {error.hint}"
    entry = EnvironmentEntry(name="SciWorld", transport="http", port=8000)  # as it says
    assert resolve_environment(profile(entry), "SCIWORLD").name == "SciWorld"


@pytest.mark.parametrize(
    ("entry", "problem", "advice"),
    [
        (EnvironmentEntry(name="sciworld"), "neither port nor base_url", "set transport: http, and port: 8000"),
        (EnvironmentEntry(name="SciWorld", transport="http"), "neither port nor base_url", "or base_url: http://"),
        (
            EnvironmentEntry(name="SciWorld", transport="embedded", port=1),
            "transport is embedded",
            "set transport: http",
        ),
        (EnvironmentEntry(name="SciWorld", transport="embedded"), "transport is embedded", "and port: 8000"),
    ],
)
def test_an_entry_that_leads_to_no_server_is_answered_with_the_missing_keys(
    entry: EnvironmentEntry, problem: str, advice: str
) -> None:
    error = rejection("SciWorld", profile(entry))
    assert problem in error.problem
    assert advice in error.hint
    availability = availability_of(entry, None)
    assert (availability.status, availability.playable) == ("down", False)
    assert problem in (availability.cause or "")


def test_a_skipped_name_is_answered_with_the_reason_and_the_way_to_play_it() -> None:
    skip = (SkipEntry(name="SciWorld", reason="needs Java"), SkipEntry(name="Maze", reason="boring"))
    error = rejection("SciWorld", profile(skip=skip))
    assert error.problem == "SciWorld is skipped in profile p: needs Java"
    assert "environments.skip" in error.hint
    assert KEYS in error.hint
    assert "server" not in rejection("maze", profile(skip=skip)).hint


@pytest.mark.parametrize(
    ("env", "suggestion"), [("SciWrld", "SciWorld"), ("mase", "Maze"), ("Countdwn", "Countdown"), ("zzzzzzzzzzzz", "")]
)
def test_an_unknown_name_is_answered_with_all_names_and_the_closest(env: str, suggestion: str) -> None:
    listed = (EnvironmentEntry(name="Countdown"), EnvironmentEntry(name="gymnasium:FrozenLake-v1"))
    error = rejection(env, profile(*listed))
    assert error.problem == f"There is no environment named {env!r}"
    assert (f"Did you mean {suggestion}?" in error.hint) == bool(suggestion)
    embedded, _, served = error.hint.partition("Played only on a server")
    assert all(name in embedded for name in ("Embedded environments: ", "BabyAI", "Wordle", "gymnasium:FrozenLake-v1"))
    assert "Countdown," not in embedded  # in the profile, but not installed
    assert all(name in served for name in ("port", "base_url", "transport: http", "SciWorld", "SearchQA", "Weather"))


def test_a_listed_name_without_environment_or_server_is_answered_with_all_names() -> None:
    error = rejection("nowhere", profile(EnvironmentEntry(name="Nowhere", port=1)))
    assert error.problem == "Nowhere is in profile p, but no environment of that name is installed"
    assert "BabyAI" in error.hint
    assert "SciWorld" in error.hint
    assert did_you_mean("SciWrld") == "Did you mean SciWorld?"
    with pytest.raises(ConfigError, match=r"no environment named 'Foo'.*Wordle.*SciWorld"):
        resolved_batch(env="Foo", agent="random")


@given(env=st.text(max_size=300) | st.sampled_from(server_only_names()))
@example(env="SciWorld\x1b[2J")
@example(env="x" * 5000)
def test_every_answer_fits_a_reply_of_a_node(env: str) -> None:
    errors = [unknown_environment(env)]
    for name in server_only_names():
        errors.append(rejection(name, profile(skip=(SkipEntry(name=name, reason="needs Docker"),))))
        errors.append(rejection(name, profile(EnvironmentEntry(name=name))))
    for error in errors:
        reply = to_control_error(error)
        assert (reply.code, reply.hint) == ("refused", error.hint)
        assert len(reply.message) <= MAX_ECHO_CHARS
        assert reply.message.isprintable()
        assert len(error.hint) <= MAX_HINT_CHARS

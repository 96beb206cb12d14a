"""Gymnasium environments as text: FrozenLake and CliffWalking in words, others as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner import plugins
from runner.batch.batch import Batch
from runner.batch.spec import BatchRequest, resolve_batch
from runner.batch.workspace import Workspace
from runner.config import EnvironmentEntry, Environments, Profile
from runner.envs.gymnasium import ENVIRONMENT_INFO, GymnasiumEnvironment
from runner.envs.placement import resolve_environment
from runner.errors import ConfigError
from runner.testing import check_env
from runner.types import Action, Limits, Outcome, TimeStep, Trajectory
from tests.support.batches import resolved_batch
from tests.support.episodes import make_step

LAKE = "gymnasium:FrozenLake-v1"
CLIFF = "gymnasium:CliffWalking-v1"
AROUND_THE_CLIFF = ("up", *["right"] * 11, "down")


def play(env: GymnasiumEnvironment, *actions: str, task_index: int = 0) -> Trajectory:
    env.reset(task_index=task_index)
    steps: list[TimeStep] = []
    for text in actions:
        chat, reward, done = env.step(Action(text=text))
        steps.append(make_step(len(steps), action=Action(text=text), observation=chat, reward=reward, done=done))
        if done:
            break
    return Trajectory(episode_id="x", timesteps=steps)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1"])
def test_the_environment_fulfills_the_contract(env_id: str) -> None:
    check_env(lambda: GymnasiumEnvironment(id=env_id), max_steps=20)


def test_a_grid_is_shown_as_row_column_and_map() -> None:
    first = GymnasiumEnvironment(id="FrozenLake-v1").reset(task_index=3)[0]["content"]
    assert first is not None
    assert first.splitlines()[1:] == [
        "Actions: left, down, right, up.",
        "row 0, column 0",
        "SFFF",
        "FHFH",
        "FFFH",
        "HFFG",
    ]
    assert first.isascii()


def test_a_task_is_a_seed_and_a_wrong_action_changes_nothing() -> None:
    env = GymnasiumEnvironment(id="Blackjack-v1")
    hands = {str(env.reset(task_index=task)) for task in range(8)}
    assert len(hands) > 1
    assert all("your sum" in hand for hand in hands)
    invalid = play(env, "split", "", "HIT").timesteps
    assert [(step.reward, step.done) for step in invalid] == [(0.0, False)] * 3
    assert "exactly one of: stick, hit" in str(invalid[0].observation)


def test_reaching_the_goal_is_a_success_despite_step_costs() -> None:
    env = GymnasiumEnvironment(id="CliffWalking-v1")
    solved = play(env, *AROUND_THE_CLIFF)
    assert (solved.reward, solved.timesteps[-1].done, env.success(solved)) == (-13.0, True, True)
    fallen = play(env, "right", "up")
    assert (fallen.timesteps[0].reward, env.success(fallen)) == (-100.0, False)
    assert not env.success(Trajectory(episode_id="x"))


def test_gymnasiums_step_limit_truncates_the_episode() -> None:
    lake = GymnasiumEnvironment(id="FrozenLake-v1")
    limit = max(len(play(lake, *["up"] * 200, task_index=task).timesteps) for task in range(20))
    assert limit == 100
    pole = GymnasiumEnvironment(id="CartPole-v1")
    fallen = play(pole, *["push left"] * 500)
    assert (pole.truncated, pole.success(fallen)) == (False, False)
    car = GymnasiumEnvironment(id="MountainCar-v0")
    stuck = play(car, *["do nothing"] * 300)
    assert (len(stuck.timesteps), car.truncated, car.success(stuck)) == (200, True, False)


def test_an_environment_without_a_description_uses_numbers() -> None:
    env = GymnasiumEnvironment(id="Acrobot-v1")
    first = env.reset()[0]["content"] or ""
    assert first.splitlines()[1] == "Actions: 0, 1, 2."
    assert len(first.splitlines()[2].split(", ")) == 6
    assert env.admissible_actions() == ["0", "1", "2"]


def test_every_description_matches_the_spaces_of_its_environment() -> None:
    import gymnasium

    for name, info in ENVIRONMENT_INFO.items():
        newest = max(env_id for env_id in gymnasium.registry if env_id.rpartition("-v")[0] == name)
        env = GymnasiumEnvironment(id=newest)
        text = (env.reset(task_index=1)[0]["content"] or "").splitlines()[2]
        assert [part.rpartition(" ")[0] for part in text.split(", ")] == list(info.fields)
        env.step(Action(text=info.actions[-1]))
        env.cleanup()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gymnasium:CliffWalkin-v1", "Did you mean gymnasium:CliffWalking-v1?"),
        ("gymnasium:Zyzzyva-v1", "pprint_registry"),
        ("gymnasium:../../etc-v1", "Malformed environment ID"),
        ("gymnasium:Pendulum-v1", "the action space Box"),
        ("gymnasium:os:Path-v1", "There is no environment "),
        ("gymnasium:", "There is no environment "),
        ("gymnasium:${oc.env:HOME}-v1", "There is no environment "),
        ("other:FrozenLake-v1", "There is no environment "),
    ],
)
def test_unplayable_ids_are_rejected_with_a_hint(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_batch(Profile(id="p"), BatchRequest(env=name, agent="random"))
    assert message in str(caught.value)


def test_an_old_version_causes_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert "pole angle" in (GymnasiumEnvironment(id="CartPole-v0").reset()[0]["content"] or "")
    assert not recwarn.list


def test_an_oracle_is_rejected() -> None:
    with pytest.raises(ConfigError, match="has no oracle; choose another agent"):
        resolved_batch(env=LAKE, agent="oracle")


def test_the_registry_accepts_the_family_without_listing_it() -> None:
    assert plugins.is_registered(plugins.ENVS, "Gymnasium:Anything-v0")
    assert not plugins.is_registered(plugins.AGENTS, LAKE)
    assert plugins.find(plugins.ENVS, "GYMNASIUM:FrozenLake-v1").name == LAKE
    assert not any("gymnasium" in name.lower() for name in plugins.registered_names(plugins.ENVS))
    profile = Profile(id="p", environments=Environments(lightweight=(EnvironmentEntry(name=LAKE),)))
    assert resolve_environment(profile, LAKE.lower()).name == LAKE


def test_a_batch_is_stored_with_label_and_versions(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p")
    script = resolved_batch(env=CLIFF, agent="scripted", script=AROUND_THE_CLIFF, limits=Limits(max_rounds=20))
    random = resolved_batch(env=LAKE, agent="random", repeat=3, tracing="off")
    results = [Batch(planned, workspace).run() for planned in (script, random)]
    workspace.close()
    assert [result.problems for result in results] == [[], []]
    assert results[0].outcomes == {Outcome.SUCCESS: 1}
    assert results[1].n_episodes == 3
    files = [json.loads(path.read_bytes()) for path in tmp_path.glob("runs/*/*.json")]
    assert {(file["data_label"], file["transport"]) for file in files} == {("Gymnasium", "embedded")}
    assert {file["env"] for file in files} == {LAKE, CLIFF}
    assert all(file["versions"]["gymnasium"] for file in files)
    assert not [path for path in tmp_path.rglob("*") if "gymnasium" in path.name.lower()]

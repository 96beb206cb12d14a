"""Failures as templates, and flags: pathologies of an episode that are found without a model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.agents.baselines import OracleAgent, single_chat
from runner.episode.factory import EpisodeFactory
from runner.errors import AgentFault
from runner.plugins import ENVS, find, load
from runner.store import EpisodeRecord
from runner.store.failures import MAX_WORDS, Failure, action_template, find_failure, text_template
from runner.store.flags import Flag, find_flags
from runner.types import Action, Chat, ErrorInfo, Limits, Outcome, TimeStep, ToolCall, ToolSchema
from runner.util.display_text import is_unsafe
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory

Cause = Literal["invalid", "loop", "error"]
LOOPS = {
    "Maze": "move up",
    "TextCraft": "inventory",
    "BabyAI": "turn left",
    "Wordle": "crane",
    "ALFWorld": "inventory",
    "WebShop": "search[shoes]",
}


class CorruptedOracle(OracleAgent):
    """An oracle that fails from a drawn step on for a planted cause."""

    def __init__(self, *, env: str, cause: Cause, start: int) -> None:
        environment: Any = load(ENVS, env)
        super().__init__(twin=environment())
        self._env, self._cause, self._start, self._n = env, cause, start, 0

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        self._n += 1
        if self._n <= self._start:
            return await super().act(observation, tool_schemas)
        if self._cause == "error":
            raise AgentFault(f"the plan of task {self._n} has no step {self._start}")
        return single_chat(observation, LOOPS[self._env] if self._cause == "loop" else f"fly to planet {self._n}")


def test_planted_causes_come_out_as_clusters() -> None:
    found: list[tuple[tuple[str, str], Failure]] = []
    for env in LOOPS:
        for cause in get_args(Cause):
            for task in range(2):
                failure = play(env, task, "tests.unit.store.test_failures.CorruptedOracle", cause=cause)
                found += [((env, cause), failure)] if failure else []
    for env in ("Maze", "Wordle", "ALFWorld", "SQLGym"):
        for task in range(2):
            failure = play(env, task, "runner.agents.baselines.RandomAgent")
            found += [((env, "random"), failure)] if failure else []
    assert len(found) > 35
    clusters = Counter((planted, (planted[0], *key(failure))) for planted, failure in found)
    assert best_share(clusters, by=1) >= 0.95, "purity"
    assert best_share(clusters, by=0) >= 0.95, "completeness"


def key(failure: Failure) -> tuple[str, str, str]:
    return failure.cause, failure.action, failure.observation


def best_share(clusters: Counter[tuple[Any, Any]], *, by: int) -> float:
    """Return the share of episodes that belong to the largest part of their group, by planted (0) or found (1) key."""
    largest: dict[object, int] = {}
    for pair, n in clusters.items():
        largest[pair[by]] = max(n, largest.get(pair[by], 0))
    return sum(largest.values()) / clusters.total()


def play(env: str, task: int, agent: str, **arguments: object) -> Failure | None:
    """Play a task with a corrupted oracle or a random agent; return the failure, None for a success."""
    agent_cfg = {"_target_": agent, **({"env": env, "start": task % 3, **arguments} if arguments else {})}
    runner = EpisodeFactory(env_cfg=find(ENVS, env).config(), agent_cfg=agent_cfg, limits=Limits(max_rounds=15))
    trajectory = asyncio.run(runner.play_episode({"task_index": task, "seed": task}))
    steps = [msgspec.structs.replace(step, available_tool_schemas=[]) for step in trajectory.timesteps]
    header = episode_header(env=env)
    record = finished_record(header, msgspec.structs.replace(trajectory, episode_id=header.episode_id, timesteps=steps))
    return find_failure(record, record.timesteps)


def failed(*observations: str, outcome: Outcome = Outcome.FAILURE, **fields: Any) -> EpisodeRecord:  # noqa: ANN401
    header = episode_header()
    steps = [
        make_step(index, observation=[{"role": "user", "content": text}], **fields)
        for index, text in enumerate(observations)
    ]
    error = ErrorInfo("timeout", "no answer in 30 s from http://h:1/v1", "") if outcome is Outcome.ERROR else None
    return finished_record(header, make_trajectory(header, steps, outcome=outcome, success=False, error_info=error))


@pytest.mark.parametrize(
    ("episode", "failure"),
    [
        (failed("a", "You lost. Again"), Failure("wrong", "move …", "You lost", 1)),
        (failed("a", "b", outcome=Outcome.TRUNCATED), Failure("limit", "", "truncated")),
        (failed(outcome=Outcome.ERROR), Failure("error", "", "timeout no answer in … from …")),
        (failed("x", "stuck", "stuck", "stuck"), Failure("loop", "move …", "stuck", 1)),
        (failed(*"abc", action=Action("go", valid=False)), Failure("invalid", "go", "…", 0)),
        (failed(*"abc", action=Action("go", refused=True)), Failure("refused", "go", "…", 0)),
        (failed("no", "no", "no", action=Action("go", refused=True)), Failure("refused", "go", "no", 0)),
        (failed("a", outcome=Outcome.CANCELLED), None),
    ],
)
def test_the_cause_is_what_happened_at_the_end(episode: EpisodeRecord, failure: Failure | None) -> None:
    assert find_failure(episode, episode.timesteps) == failure


@pytest.mark.parametrize(
    ("text", "literals", "template"),
    [
        ("Could not find 3 oak logs in chest_2. Try again", ["oak", "logs"], "Could not find … in …"),
        ('Error: no such column "x y" here', [], "Error no such column … here"),
        ("[('Smith', 'poetry'), (1,)]", [], "…"),
        ("\n\n  You can't do that!\nReally", [], "You can't do that"),
        ("You pick up the mug 2 from a SideTable 1", [], "You pick up the … from …"),
        ("Inventory: birch log x 2", [], "Inventory"),
        ("Instruction: [SEP] find me", [], "Instruction"),
        ("", [], ""),
    ],
)
def test_a_template_has_the_words_of_the_first_sentence(text: str, literals: Sequence[str], template: str) -> None:
    assert text_template(text, literals) == template


def test_a_template_of_an_action_has_no_literals() -> None:
    assert action_template(Action("x", [ToolCall("1", "move", "{}"), ToolCall("2", "look", "{}")])) == "move … + look …"
    assert action_template(Action("fly to planet 9")) == "fly …"
    assert action_template(Action("I think that the best that I can do is to go up")) == "prose"
    assert action_template(Action("")) == "no text"


@given(st.text(), st.text(), st.lists(st.text(), max_size=3))
def test_no_text_breaks_a_template(text: str, name: str, literals: Sequence[str]) -> None:
    template = text_template(text, literals)
    assert len(template.split(" ")) <= MAX_WORDS
    assert not is_unsafe(template)
    assert not is_unsafe(action_template(Action(text, [ToolCall("", name, text)])))
    assert not is_unsafe(action_template(Action(text)))


def steps(actions: str, *, observations: str | None = None, reward: float = 0.0) -> list[TimeStep]:
    """Return a step per letter; an upper-case letter is an invalid action."""
    return [
        make_step(
            index,
            action=Action(letter, valid=letter.islower()),
            observation=[{"role": "user", "content": (observations or actions)[index]}],
            reward=reward,
        )
        for index, letter in enumerate(actions)
    ]


def ended(played: list[TimeStep], outcome: Outcome = Outcome.SUCCESS, error: str | None = None) -> EpisodeRecord:
    header = episode_header()
    error_info = ErrorInfo(error, "", "") if error else None
    is_success = outcome is Outcome.SUCCESS
    return finished_record(
        header, make_trajectory(header, played, outcome=outcome, success=is_success, error_info=error_info)
    )


def flags_of(episode: EpisodeRecord) -> tuple[Flag, ...]:
    return find_flags(episode, episode.timesteps)


@pytest.mark.parametrize(
    ("actions", "observations", "start"),
    [
        ("xaaa", None, 1),
        ("xaa", None, None),
        ("aaaa", "1234", None),
        ("xababab", None, 1),
        ("xababa", None, None),
        ("abcdabcdabcd", None, 0),
        ("abcdeabcdeabcde", None, None),
        ("", None, None),
    ],
)
def test_a_loop_is_up_to_four_steps_three_times_in_a_row(
    actions: str, observations: str | None, start: int | None
) -> None:
    flags = flags_of(ended(steps(actions, observations=observations)))
    assert flags == (() if start is None else (Flag("loop", start),))


def test_three_invalid_or_refused_actions_in_a_row_are_flagged_where_they_begin() -> None:
    assert flags_of(ended(steps("aBaBCDa"))) == (Flag("invalid", 3),)
    assert flags_of(ended(steps("ABaCD"))) == ()
    played = steps("abcdef")
    for index in (0, 2, 3, 4):
        played[index].action = Action("go", refused=True)
    assert flags_of(ended(played)) == (Flag("refused", 2),)


@pytest.mark.parametrize(
    ("outcome", "reward", "flags"),
    [
        (Outcome.SUCCESS, 1.0, ()),
        (Outcome.FAILURE, 0.0, ()),
        (Outcome.FAILURE, 0.5, (Flag("unearned", 0),)),
        (Outcome.TRUNCATED, 0.5, (Flag("truncated"), Flag("unearned", 0))),
        (Outcome.CANCELLED, 0.5, ()),
    ],
)
def test_the_end_of_an_episode_is_flagged(outcome: Outcome, reward: float, flags: tuple[Flag, ...]) -> None:
    assert flags_of(ended(steps("ab", reward=reward), outcome)) == flags


def test_a_diverged_oracle_and_a_fallback_are_flagged_at_their_step() -> None:
    assert flags_of(ended(steps("ab"), Outcome.ERROR, "oracle_diverged")) == (Flag("diverged", 1),)
    assert flags_of(ended(steps("ab"), Outcome.ERROR, "timeout")) == ()
    answers = [make_step(0, endpoint="first"), make_step(1, endpoint="second", warnings=("first: refused",))]
    assert flags_of(ended(answers)) == (Flag("fallback", 1),)

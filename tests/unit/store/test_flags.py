"""Flags: pathologies of an episode that are found without a model."""

from __future__ import annotations

import pytest

from runner.store import EpisodeRecord
from runner.store.flags import Flag, find_flags
from runner.types import Action, ErrorInfo, Outcome, TimeStep
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory


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


def test_three_invalid_actions_in_a_row_are_flagged_where_they_begin() -> None:
    assert flags_of(ended(steps("aBaBCDa"))) == (Flag("invalid", 3),)
    assert flags_of(ended(steps("ABaCD"))) == ()


def test_three_refused_actions_in_a_row_are_flagged_where_they_begin() -> None:
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

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.envs.wordle import AGENTGYM_WORDS, Wordle, hidden_words, loose_marks, official_marks, shipped_words
from runner.errors import EnvironmentFault
from runner.types import Action, InvalidAction, Mode
from runner.util.files import package_resource

MODES: tuple[Mode, ...] = ("strict", "compat")
SECRETS = ("yoked", "hunks", "heard", "creak", "stoop")
WORDS = st.text(alphabet="abcde", min_size=5, max_size=5)


def step_text(env: Wordle, text: str) -> tuple[str, float, bool]:
    chat, reward, done = env.step(Action(text=text))
    return chat[0]["content"] or "", reward, done


def start_env(task_index: int = 0, mode: Mode = "strict") -> Wordle:
    env = Wordle(mode=mode)
    env.reset(task_index=task_index)
    return env


def play_oracle(task_index: int, mode: Mode) -> tuple[float, int]:
    """Return the reward of the oracle's episode and its number of guesses."""
    env = start_env(task_index, mode)
    oracle = env.oracle(0)
    for n in range(1, 7):
        _, reward, done = step_text(env, oracle.next_action())
        if done:
            return reward, n
    raise AssertionError("an episode has at most six guesses")


@pytest.mark.parametrize(
    ("guess", "secret", "official", "loose"),
    [
        ("allee", "label", "yyygb", "yyygy"),
        ("eerie", "those", "bbbbg", "yybbg"),
        ("llama", "skill", "yybbb", "yybbb"),
        ("level", "hello", "ygbby", "ygbyy"),
    ],
)
def test_official_and_loose_marks_of_a_guess(guess: str, secret: str, official: str, loose: str) -> None:
    assert official_marks(guess, secret) == official
    assert loose_marks(guess, secret) == loose


@given(guess=WORDS, secret=WORDS)
def test_official_marks_count_each_letter_at_most_as_often_as_the_secret(guess: str, secret: str) -> None:
    marks = official_marks(guess, secret)
    assert [mark == "g" for mark in marks] == [a == b for a, b in zip(guess, secret, strict=True)]
    for letter in set(guess):
        of_letter = [mark for a, mark in zip(guess, marks, strict=True) if a == letter]
        assert len(of_letter) - of_letter.count("b") == min(guess.count(letter), secret.count(letter))
        misplaced = [mark for mark in of_letter if mark != "g"]
        assert misplaced == sorted(misplaced, reverse=True), "y goes to the leftmost ones"


@given(guess=WORDS, secret=WORDS)
def test_loose_marks_differ_only_in_surplus_letters(guess: str, secret: str) -> None:
    official, loose = official_marks(guess, secret), loose_marks(guess, secret)
    differing = {(a, b) for a, b in zip(official, loose, strict=True) if a != b}
    assert differing <= {("b", "y")}
    assert [mark == "b" for mark in loose] == [letter not in secret for letter in guess]


def test_the_shipped_words_are_sorted_five_letter_words_with_their_notice() -> None:
    words = shipped_words()
    assert len(words) == 3568
    assert list(words) == sorted(set(words))
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in words)
    assert "Copyright 2000-2011 by Kevin Atkinson" in package_resource("data", "wordle", "LICENSE").read_text("utf-8")


def test_tasks_are_all_words_in_a_fixed_shuffled_order() -> None:
    assert sorted(hidden_words()) == list(shipped_words())
    assert hidden_words()[:5] == SECRETS
    assert Counter(word[0] for word in hidden_words()[:100]).most_common(1)[0][1] < 30
    assert Wordle().n_tasks == 3568


def test_the_first_observation_is_the_rules_or_agentgyms_greeting_in_compat() -> None:
    rules = Wordle().reset(task_index=0)[0]["content"] or ""
    assert rules.startswith("Let's start Wordle!")
    for phrase in ("five-letter", "six guesses", "invalid word", "g =", "y =", "b ="):
        assert phrase in rules
    assert Wordle(mode="compat").reset(task_index=0)[0]["content"] == "Let's start Wordle!"


def test_the_task_determines_the_hidden_word() -> None:
    env = start_env(3)
    secret = hidden_words()[3]
    for _ in range(2):
        observation, reward, done = step_text(env, "crane")
        assert observation == " ".join(official_marks("crane", secret)) + "\n"
        assert (reward, done) == (0.0, False)
    assert step_text(env, secret) == ("g g g g g\n", 1.0, True)
    assert not env.truncated


@pytest.mark.parametrize("text", ["panic", "p a n i c", " p a n i c\n", "pa  nic"])
def test_spaced_and_plain_guesses_are_the_same(text: str) -> None:
    for mode in MODES:
        plain, spaced = start_env(1, mode), start_env(1, mode)
        assert step_text(spaced, text) == step_text(plain, "panic")
        assert step_text(spaced, "solar") == step_text(plain, "solar")
        assert isinstance(plain.parse(text), Action)


@pytest.mark.parametrize(
    "text", ["zzzzz", "P A N I C", "", "panics", "pan\tic", "p-a-n-i-c", "\uff50anic", "guess panic"]
)
def test_an_invalid_word_costs_a_guess(text: str) -> None:
    for mode in MODES:
        env = start_env(0, mode)
        assert [step_text(env, text) for _ in range(6)] == [("invalid word", 0.0, n == 5) for n in range(6)]
        assert env.history == []
        with pytest.raises(EnvironmentFault, match="call reset first"):
            step_text(env, "panic")


def test_a_real_word_outside_agentgyms_vocabulary_is_invalid_in_compat_only() -> None:
    assert step_text(start_env(0, "compat"), "hello")[0] == "invalid word"
    assert step_text(start_env(0), "hello")[0] != "invalid word"


@settings(deadline=None)
@given(seed=st.integers(0, 2**31 - 1), data=st.data())
def test_compat_marks_never_contradict_each_other(seed: int, data: st.DataObject) -> None:
    env = start_env(seed, "compat")
    done = False
    while not done:
        _, _, done = step_text(env, data.draw(st.sampled_from(AGENTGYM_WORDS)))
    assert [w for w in AGENTGYM_WORDS if all(loose_marks(guess, w) == marks for guess, marks in env.history)]


@pytest.mark.parametrize("mode", MODES)
def test_all_words_are_admissible_and_valid(mode: Mode) -> None:
    env = start_env(0, mode)
    actions = env.admissible_actions()
    assert len(actions) == (3568 if mode == "strict" else 40)
    assert all(isinstance(env.parse(action), Action) for action in actions)
    assert not any(isinstance(env.parse(text), Action) for text in ("PANIC", "pani", "panics", "pan1c", "guess: panic"))
    assert isinstance(env.parse("\ud800"), InvalidAction)


def test_the_tool_describes_its_vocabulary_only_where_it_is_small() -> None:
    strict, compat = (Wordle(mode=mode).get_tool_schemas()[0]["function"]["description"] for mode in MODES)
    assert all(word in compat for word in AGENTGYM_WORDS)
    assert len(strict) < 200


@pytest.mark.long
def test_the_oracle_solves_the_first_tasks() -> None:
    results = [play_oracle(task, "strict") for task in range(20)]
    assert sum(reward for reward, _ in results) >= 18
    assert sum(n for _, n in results) / len(results) < 4.5


def test_the_oracle_solves_agentgyms_words() -> None:
    results = [play_oracle(task, "compat") for task in range(20)]
    assert sum(reward for reward, _ in results) == 20


def test_the_oracle_does_not_know_the_secret() -> None:
    first, second = start_env(0), start_env(1)
    assert first.oracle(0).next_action() == second.oracle(0).next_action()
    second.history.extend([("crane", "bbbby"), ("solid", "ybbbb")])
    first.history.extend([("crane", "bbbby"), ("solid", "ybbbb")])
    assert first.oracle(0).next_action() == second.oracle(0).next_action()

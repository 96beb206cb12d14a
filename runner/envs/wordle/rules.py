"""How a guess is marked, and who knows the hidden word."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol, TypeAlias

from runner.util.package_data import package_resource

_AGENTGYM = (
    "panic solar shire proxy point robot prick wince crimp knoll sugar whack mount perky could wrung light those moist "
    "shard pleat aloft skill elder frame humor pause ulcer ultra robin cynic aroma caulk shake dodge swill tacit other "
    "thorn trove"
)


AGENTGYM_WORDS: tuple[str, ...] = tuple(_AGENTGYM.split())
"""The vocabulary of AgentGym's server; its order decides which word a draw hides."""


@cache
def shipped_words() -> tuple[str, ...]:
    """The 3,568 words of ``data/wordle/words.txt``, in alphabetical order."""
    return tuple(package_resource("data", "wordle", "words.txt").read_text("utf-8").split())


@cache
def hidden_words() -> tuple[str, ...]:
    """The shipped words in task order: shuffled by digest, since ``random.shuffle`` may change between Pythons."""
    return tuple(sorted(shipped_words(), key=lambda word: hashlib.sha256(word.encode()).digest()))


Marking: TypeAlias = Callable[[str, str], str]
"""Marks a guess against a hidden word: per letter ``g`` (right place), ``y`` (elsewhere) or ``b`` (not there)."""


def official_marks(guess: str, secret: str) -> str:
    """The published rules: a letter is marked as often as the hidden word has it, right places first."""
    unplaced = [hidden for letter, hidden in zip(guess, secret, strict=True) if letter != hidden]
    marks = []
    for letter, hidden in zip(guess, secret, strict=True):
        if letter == hidden:
            marks.append("g")
        elif letter in unplaced:
            unplaced.remove(letter)
            marks.append("y")
        else:
            marks.append("b")
    return "".join(marks)


def loose_marks(guess: str, secret: str) -> str:
    """AgentGym's rules: a letter out of place is ``y`` whenever the hidden word has it anywhere, however often."""
    return "".join(
        "g" if letter == hidden else "y" if letter in secret else "b"
        for letter, hidden in zip(guess, secret, strict=True)
    )


class HiddenWord(Protocol):
    """Knows the hidden word of one episode."""

    def mark(self, guess: str) -> str:
        """The marks of a guess that is one of the words."""


class FixedWord:
    """One hidden word for the whole episode, marked by the published rules."""

    def __init__(self, secret: str) -> None:
        """Hide ``secret``."""
        self._secret = secret

    def mark(self, guess: str) -> str:
        """The marks of ``guess`` against the hidden word."""
        return official_marks(guess, self._secret)


class DrawnWord:
    """Draws the hidden word anew for each guess, among the words that all marks so far allow.

    The draw is ``random.Random(seed).choice``, one per valid guess, so the seed and the guesses decide everything.
    """

    def __init__(self, words: Sequence[str], seed: int) -> None:
        """Start with all ``words`` allowed, in their order."""
        self._candidates = list(words)
        self._random = random.Random(seed)

    def mark(self, guess: str) -> str:
        """The marks of ``guess`` against the word just drawn."""
        marks = loose_marks(guess, self._random.choice(self._candidates))
        self._candidates = filter_candidates(self._candidates, loose_marks, guess, marks)
        return marks


def filter_candidates(words: Sequence[str], marking: Marking, guess: str, marks: str) -> list[str]:
    """Those of ``words`` against which ``guess`` would have got ``marks``."""
    return [word for word in words if marking(guess, word) == marks]

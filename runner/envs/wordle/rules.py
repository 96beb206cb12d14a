"""Rules of Wordle: word lists, marking functions and hidden words.

``loose_marks``, ``DrawnWord`` and ``AGENTGYM_WORDS`` reproduce AgentGym's
``agentenv-lmrlgym/agentenv_lmrlgym/wordle/environment.py``; ``official_marks`` and ``FixedWord`` are the published
rules.
"""

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
"""Vocabulary of AgentGym's server; its order determines the random draws."""


@cache
def shipped_words() -> tuple[str, ...]:
    """Return the 3,568 words of ``data/wordle/words.txt``, in alphabetical order."""
    return tuple(package_resource("data", "wordle", "words.txt").read_text("utf-8").split())


@cache
def hidden_words() -> tuple[str, ...]:
    """Return the shipped words in task order.

    They are sorted by digest, because the result of ``random.shuffle`` may differ between Python versions.
    """
    return tuple(sorted(shipped_words(), key=lambda word: hashlib.sha256(word.encode()).digest()))


Marking: TypeAlias = Callable[[str, str], str]
"""Marks a guess against a hidden word: per letter ``g`` (right place), ``y`` (other place) or ``b`` (absent)."""


def official_marks(guess: str, secret: str) -> str:
    """Return the marks by the published rules.

    A letter is marked ``g`` or ``y`` at most as often as the hidden word contains it; letters in the right place count
    first.
    """
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
    """Return the marks by AgentGym's rules: a misplaced letter is ``y`` whenever the hidden word contains it."""
    return "".join(
        "g" if letter == hidden else "y" if letter in secret else "b"
        for letter, hidden in zip(guess, secret, strict=True)
    )


class HiddenWord(Protocol):
    """The hidden word of one episode."""

    def mark(self, guess: str) -> str:
        """Return the marks of a valid guess."""


class FixedWord:
    """One hidden word for the whole episode, marked by the published rules."""

    def __init__(self, secret: str) -> None:
        """Use ``secret`` as the hidden word."""
        self._secret = secret

    def mark(self, guess: str) -> str:
        """Return the marks of ``guess``."""
        return official_marks(guess, self._secret)


class DrawnWord:
    """A hidden word that is redrawn for each guess from the words that fit all earlier marks.

    Each valid guess draws once with ``random.Random(seed).choice``, so the seed and the guesses determine all words.
    """

    def __init__(self, words: Sequence[str], seed: int) -> None:
        """Start with all ``words`` as candidates, in their order."""
        self._candidates = list(words)
        self._random = random.Random(seed)

    def mark(self, guess: str) -> str:
        """Draw a word and return the marks of ``guess`` against it."""
        marks = loose_marks(guess, self._random.choice(self._candidates))
        self._candidates = filter_candidates(self._candidates, loose_marks, guess, marks)
        return marks


def filter_candidates(words: Sequence[str], marking: Marking, guess: str, marks: str) -> list[str]:
    """Return the words for which ``guess`` would get ``marks``."""
    return [word for word in words if marking(guess, word) == marks]

"""Wordle: find a hidden five-letter word in six guesses, using the marks of each guess.

``loose_marks``, ``DrawnWord`` and ``AGENTGYM_WORDS`` reproduce AgentGym's
``agentenv-lmrlgym/agentenv_lmrlgym/wordle/environment.py``; ``official_marks`` are the published rules.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar, TypeAlias

from runner.envs.base import DataLabel, EmbeddedEnvironment, Grammar, StepText, command
from runner.types import CellRun, Cells, Mode
from runner.util.files import package_resource

Marking: TypeAlias = Callable[[str, str], str]
"""Marks a guess against a hidden word: per letter ``g`` (right place), ``y`` (other place) or ``b`` (absent)."""

MAX_GUESSES = 6
ALL_GREEN = "ggggg"

_COMPAT_TASKS = 2**31
_FORM = 'five lower-case letters, such as "crane" or "c r a n e"'
_RULES = (
    "Let's start Wordle! A five-letter English word is hidden; you have six guesses. Each guess is one lower-case "
    'word, such as "crane" or "c r a n e". The reply marks its letters in order: g = right letter in the right place, '
    "y = in the word but in another place, b = not in the word, or not once more. "
    'A guess that is not a known word is answered with "invalid word" and uses up a guess.'
)

MANY_WORDS = 500
OPENING = "tales"
"""First guess among more than ``MANY_WORDS`` candidates; it splits the 3,568 shipped words into 165 classes."""
MARKINGS_PER_GUESS = 10_000
"""Maximum number of markings computed per guess, about 20 ms."""

_AGENTGYM = (
    "panic solar shire proxy point robot prick wince crimp knoll sugar whack mount perky could wrung light those moist "
    "shard pleat aloft skill elder frame humor pause ulcer ultra robin cynic aroma caulk shake dodge swill tacit other "
    "thorn trove"
)
AGENTGYM_WORDS: tuple[str, ...] = tuple(_AGENTGYM.split())
"""Vocabulary of AgentGym's server; its order determines the random draws."""

_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_TILE_LEGEND = (
    CellRun("[a]", "green", "solid"),
    CellRun(" in place  "),
    CellRun("(a)", "yellow", "solid"),
    CellRun(" elsewhere  "),
    CellRun(" - ", "dim"),
    CellRun(" not in the word"),
)


@cache
def shipped_words() -> tuple[str, ...]:
    return tuple(package_resource("data", "wordle", "words.txt").read_text("utf-8").split())


@cache
def hidden_words() -> tuple[str, ...]:
    """In task order: by digest, because the result of ``random.shuffle`` may differ between Python versions."""
    return tuple(sorted(shipped_words(), key=lambda word: hashlib.sha256(word.encode()).digest()))


def official_marks(guess: str, secret: str) -> str:
    """A letter is ``g`` or ``y`` at most as often as the word contains it; letters in the right place count first."""
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
    """A misplaced letter is ``y`` whenever the hidden word contains it."""
    return "".join(
        "g" if letter == hidden else "y" if letter in secret else "b"
        for letter, hidden in zip(guess, secret, strict=True)
    )


class DrawnWord:
    """A hidden word that is redrawn for each valid guess, by the seed, from the words that fit all earlier marks."""

    def __init__(self, words: Sequence[str], seed: int) -> None:
        self._candidates = list(words)
        self._random = random.Random(seed)

    def mark(self, guess: str) -> str:
        marks = loose_marks(guess, self._random.choice(self._candidates))
        self._candidates = filter_candidates(self._candidates, loose_marks, guess, marks)
        return marks


def filter_candidates(words: Sequence[str], marking: Marking, guess: str, marks: str) -> list[str]:
    return [word for word in words if marking(guess, word) == marks]


def _grammar(guessable: str) -> Grammar:
    word = {"word": ("[a-z](?: *[a-z]){4}", {"type": "string", "description": _FORM})}
    return Grammar([command("{word}", f"Guess the hidden word. {guessable}", word, name="guess")], expected=_FORM)


_STRICT_GRAMMAR = _grammar("It is a common English word of five letters.")
_COMPAT_GRAMMAR = _grammar(f"It is one of: {', '.join(AGENTGYM_WORDS)}.")


class Wordle(EmbeddedEnvironment):
    """Six guesses; finding the word gives 1 and ends the episode, every other step gives 0.

    ``strict``: the published rules with 3,568 words of SCOWL (see ``data/wordle/LICENSE``). The task index selects the
    hidden word; the first observation states the rules.

    ``compat``: the rules of AgentGym's ``agentenv-lmrlgym/agentenv_lmrlgym/wordle/environment.py`` with its 40 words,
    which the tool's description lists. It keeps two quirks: the hidden word is redrawn for each guess from the words
    that fit all earlier marks (the task index is the seed), and a misplaced letter is marked ``y`` whenever the word
    contains it, however often.
    """

    name: ClassVar[str] = "Wordle"
    data_label = DataLabel("wordle")

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        strict = mode == "strict"
        self.grammar = _STRICT_GRAMMAR if strict else _COMPAT_GRAMMAR
        self.words: tuple[str, ...] = shipped_words() if strict else AGENTGYM_WORDS
        self.marking: Marking = official_marks if strict else loose_marks
        self.n_tasks = len(self.words) if strict else _COMPAT_TASKS
        self.history: list[tuple[str, str]] = []
        """Valid guesses of this episode with their marks, such as ``("crane", "bygbb")``."""
        self._valid_words = frozenset(self.words)
        self._tries = 0
        self._mark: Callable[[str], str]
        """Marks a valid guess against the hidden word."""

    def admissible_actions(self) -> list[str]:
        return list(self.words)

    @property
    def remaining_words(self) -> list[str]:
        """The valid words that fit all marks of this episode, in their order; before the first guess, all words."""
        words = list(self.words)
        for guess, marks in self.history:
            words = filter_candidates(words, self.marking, guess, marks)
        return words

    def oracle(self, seed: int | None) -> WordleOracle:
        return WordleOracle(self.words, self.marking, self.history, seed)

    def render_cells(self) -> Cells:
        tiles = [tuple(_tile(*pair) for pair in zip(*guess, strict=True)) for guess in self.history]
        blank = [(CellRun(" · " * 5, "dim"),)] * (MAX_GUESSES - self._tries)
        invalid = [(CellRun("invalid word".ljust(15), "red"),)] * (self._tries - len(self.history))
        known: dict[str, str] = {}
        for guess, marks in self.history:
            for letter, mark in zip(guess, marks, strict=True):
                known[letter] = max(mark, known.get(letter, "b"), key="byg".index)
        keys = [(CellRun("  " * number), *(_key(key, known) for key in row)) for number, row in enumerate(_KEYBOARD)]
        return Cells([*tiles, *invalid, *blank, (), *keys, (), _TILE_LEGEND])

    def _reset(self, task_index: int) -> str:
        self.history = []
        self._tries = 0
        if self.mode == "strict":
            self._mark = partial(official_marks, secret=hidden_words()[task_index])
            return _RULES
        self._mark = DrawnWord(self.words, task_index).mark
        return "Let's start Wordle!"

    def _step(self, text: str) -> StepText:
        self._tries += 1
        guess = text.strip().replace(" ", "")
        if guess not in self._valid_words:
            return "invalid word", 0.0, self._tries >= MAX_GUESSES
        marks = self._mark(guess)
        self.history.append((guess, marks))
        won = marks == ALL_GREEN
        return " ".join(marks) + "\n", float(won), won or self._tries >= MAX_GUESSES


class WordleOracle:
    """Guesses the word whose marks split the candidates into the most classes.

    The environment appends each new ``(guess, marks)`` pair to ``history``. The seed selects the guesses to compare if
    there are too many to compare all of them.
    """

    def __init__(
        self, words: Sequence[str], marking: Marking, history: Sequence[tuple[str, str]], seed: int | None
    ) -> None:
        self._words = words
        self._marking = marking
        self._history = history
        self._random = random.Random(seed or 0)
        self._candidates: Sequence[str] = words
        self._n_read = 0

    def next_action(self) -> str:
        for guess, marks in self._history[self._n_read :]:
            self._candidates = filter_candidates(self._candidates, self._marking, guess, marks)
        self._n_read = len(self._history)
        if len(self._candidates) > MANY_WORDS:
            return OPENING
        if len(self._candidates) <= 2:
            return self._candidates[0]
        n_guesses = MARKINGS_PER_GUESS // len(self._candidates)
        guesses = self._random.sample(self._candidates, min(n_guesses, len(self._candidates)))
        guesses += self._random.sample(self._words, min(n_guesses - len(guesses), len(self._words)))
        # candidates come first, so that a candidate wins a tie
        return max(guesses, key=lambda guess: len({self._marking(guess, word) for word in self._candidates}))


def _tile(letter: str, mark: str) -> CellRun:
    if mark == "g":
        return CellRun(f"[{letter.upper()}]", "green", "solid")
    if mark == "y":
        return CellRun(f"({letter.upper()})", "yellow", "solid")
    return CellRun(f" {letter.upper()} ", "plain", "shade")


def _key(letter: str, known: dict[str, str]) -> CellRun:
    match known.get(letter):
        case "g":
            return CellRun(f"[{letter}] ", "green")
        case "y":
            return CellRun(f"({letter}) ", "yellow")
        case "b":
            return CellRun(" -  ", "dim")
    return CellRun(f" {letter}  ")

"""The Wordle environment: ``Wordle``."""

from __future__ import annotations

import re
from typing import ClassVar

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.command_grammar import CommandPattern, Grammar
from runner.envs.data_labels import DataLabel
from runner.envs.wordle.oracle import WordleOracle
from runner.envs.wordle.rules import (
    AGENTGYM_WORDS,
    DrawnWord,
    FixedWord,
    HiddenWord,
    Marking,
    filter_candidates,
    hidden_words,
    loose_marks,
    official_marks,
    shipped_words,
)
from runner.types import Mode

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


def _grammar(guessable: str) -> Grammar:
    guess = CommandPattern(
        name="guess",
        description=f"Guess the hidden word. {guessable}",
        template="{word}",
        pattern=re.compile(r"(?P<word>[a-z](?: *[a-z]){4})"),
        parameters={"word": {"type": "string", "description": _FORM}},
    )
    return Grammar([guess], expected=_FORM)


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
    blocks_briefly = True
    data_label = DataLabel("wordle")

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        strict = mode == "strict"
        self.words: tuple[str, ...] = shipped_words() if strict else AGENTGYM_WORDS
        self.marking: Marking = official_marks if strict else loose_marks
        self.n_tasks = len(self.words) if strict else _COMPAT_TASKS
        self.history: list[tuple[str, str]] = []
        """Valid guesses of this episode with their marks, such as ``("crane", "bygbb")``."""
        self._valid_words = frozenset(self.words)
        self._tries = 0
        self._hidden: HiddenWord

    @property
    def grammar(self) -> Grammar:
        """Command grammar with one command: a guess."""
        return _STRICT_GRAMMAR if self.mode == "strict" else _COMPAT_GRAMMAR

    def admissible_actions(self) -> list[str]:
        """Return all valid words, including words that earlier marks exclude."""
        return list(self.words)

    @property
    def remaining_words(self) -> list[str]:
        """The valid words that fit all marks of this episode, in their order; before the first guess, all words."""
        words = list(self.words)
        for guess, marks in self.history:
            words = filter_candidates(words, self.marking, guess, marks)
        return words

    def oracle(self, seed: int | None) -> WordleOracle:
        """Return a planner that narrows the words down by the marks, without access to the hidden word."""
        return WordleOracle(self.words, self.marking, self.history, seed)

    def _reset(self, task_index: int) -> str:
        self.history = []
        self._tries = 0
        if self.mode == "strict":
            self._hidden = FixedWord(hidden_words()[task_index])
            return _RULES
        self._hidden = DrawnWord(self.words, task_index)
        return "Let's start Wordle!"

    def _step(self, text: str) -> StepText:
        self._tries += 1
        guess = text.strip().replace(" ", "")
        if guess not in self._valid_words:
            return "invalid word", 0.0, self._tries >= MAX_GUESSES
        marks = self._hidden.mark(guess)
        self.history.append((guess, marks))
        won = marks == ALL_GREEN
        return " ".join(marks) + "\n", float(won), won or self._tries >= MAX_GUESSES

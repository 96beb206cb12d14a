"""The words that can be hidden and guessed."""

from __future__ import annotations

import hashlib
from functools import cache

from runner.util.package_data import shipped

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
    return tuple(shipped("data", "wordle", "words.txt").read_text("utf-8").split())


@cache
def secrets() -> tuple[str, ...]:
    """The shipped words in task order: shuffled by digest, since ``random.shuffle`` may change between Pythons."""
    return tuple(sorted(shipped_words(), key=lambda word: hashlib.sha256(word.encode()).digest()))

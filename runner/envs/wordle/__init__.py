"""Wordle: find a hidden five-letter word in six guesses, using the marks of each guess."""

from runner.envs.wordle.environment import Wordle
from runner.envs.wordle.oracle import WordleOracle

__all__ = ["Wordle", "WordleOracle"]

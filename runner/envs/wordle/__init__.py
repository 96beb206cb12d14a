"""Wordle: find a hidden five-letter word in six guesses, by the marks each guess gets."""

from runner.envs.wordle.environment import Wordle
from runner.envs.wordle.oracle import WordleOracle

__all__ = ["Wordle", "WordleOracle"]

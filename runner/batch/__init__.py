"""Plays many episodes: planning, workers, deadlines and the result of a batch."""

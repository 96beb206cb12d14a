"""Plays one episode: reset, the loop of timesteps, teardown, and the commands that reach it."""

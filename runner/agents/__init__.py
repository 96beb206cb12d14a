"""Agents: those that ask a model, an oracle that looks inside, a random baseline, and a fixed script."""

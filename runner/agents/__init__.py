"""Agents: an oracle that looks inside, a random baseline, and a fixed script."""

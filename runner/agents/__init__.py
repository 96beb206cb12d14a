"""Agents: language-model agents, an oracle, a random baseline and a fixed script."""

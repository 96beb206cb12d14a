"""Agents: language-model agents, an oracle, a random baseline, and an agent that plays a fixed script."""

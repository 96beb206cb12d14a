"""Servers of our own: environments over AgentGym's protocol, and what they are hosted with."""

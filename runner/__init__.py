"""Headless runner: runs agents in AgentGym environments and stores the episodes."""

__version__ = "0.1.0"

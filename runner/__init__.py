"""Headless runner: plays agents through AgentGym environments and keeps what happened."""

__version__ = "0.1.0"

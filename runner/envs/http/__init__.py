"""Environments played over HTTP, on servers that speak AgentGym's protocol."""

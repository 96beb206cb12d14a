"""Environments played in this process, one module each, and what they share."""

"""Clients of nodes."""

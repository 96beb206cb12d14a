"""Reads messages from a bus: live, from history, in order and without duplicates."""

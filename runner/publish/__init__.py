"""Delivers events: the outbox, the sinks it drains into, and the live publisher."""

"""Delivery of events: the outbox, its sinks, and the live publisher."""

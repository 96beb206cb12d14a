"""Subscriptions to a bus: history and live messages, in order and without duplicates."""

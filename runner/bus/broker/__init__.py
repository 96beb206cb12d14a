"""The node's own nats-server: its process, its store and its disk."""

"""The node's own nats-server: its process, its store lock, and its disk."""

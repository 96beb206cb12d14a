"""The connection to NATS: addresses, streams, request and reply, reconnection."""

"""The worker service: owns a state directory, plays batches from a durable queue, and says on the bus what happens."""

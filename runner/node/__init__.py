"""The node service: owns a state directory, runs batches from a queue on disk, and publishes events on the bus."""

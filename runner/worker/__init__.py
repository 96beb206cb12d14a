"""The worker side of a batch: a process that builds agents and environments, plays episodes and sends their events."""

"""Episode execution: reset, the step loop, teardown, and commands to a running episode."""

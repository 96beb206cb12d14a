"""Batch execution: planning, workers, deadlines and results."""

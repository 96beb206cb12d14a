"""Results of stored episodes from the index: rates with intervals, matrices of tasks and attempts, comparisons."""

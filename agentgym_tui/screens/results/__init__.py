"""The Results screen, the matrix of tasks and attempts, and the comparison of two selections."""

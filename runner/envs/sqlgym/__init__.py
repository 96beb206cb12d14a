"""SQLGym: answer a question about a database with a single SQL query."""

from runner.envs.sqlgym.environment import SQLGym, SQLGymOracle

__all__ = ["SQLGym", "SQLGymOracle"]

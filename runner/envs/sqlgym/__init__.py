"""SQLGym: answer a question about a database with one SQL query."""

from runner.envs.sqlgym.environment import SQLGym, SQLGymOracle

__all__ = ["SQLGym", "SQLGymOracle"]

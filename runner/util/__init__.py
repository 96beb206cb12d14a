"""General helpers that do not depend on environments, agents or episodes: clock, text, files, package data and bounded values."""

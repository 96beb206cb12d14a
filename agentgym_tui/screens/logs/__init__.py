"""The screen of a log file."""

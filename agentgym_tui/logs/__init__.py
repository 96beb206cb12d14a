"""Reads log files of any size: line index, search and parsed records."""

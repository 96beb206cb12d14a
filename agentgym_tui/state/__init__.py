"""State of the console: plain data reduced from events, files and node replies; no widgets."""

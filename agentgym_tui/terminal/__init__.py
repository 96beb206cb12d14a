"""The terminal: entering and leaving it, signals, the startup preview and the crash report."""

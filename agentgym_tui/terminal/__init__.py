"""The terminal: alternate screen, signals, startup preview, Textual driver and crash report."""

"""The terminal: alternate screen, signals, startup preview, Textual driver, pager and editor, and crash report."""

"""The screen of bus messages."""

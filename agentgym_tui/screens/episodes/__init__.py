"""The screen that lists episodes."""

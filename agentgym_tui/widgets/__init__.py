"""Widgets of the console. Every widget draws sanitized text, line by line."""

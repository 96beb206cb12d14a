"""Helpers without domain knowledge: clock, text, files, package data and bounded values."""

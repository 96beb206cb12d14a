"""General helpers, independent of the other packages: clock, text, files, package data and bounded values."""

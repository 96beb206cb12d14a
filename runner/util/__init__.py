"""Small helpers without a domain: clocks, text, files and JSON values."""

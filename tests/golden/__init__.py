"""Recordings of what the product writes and sends; a test plays them again, ``make golden`` records them anew."""

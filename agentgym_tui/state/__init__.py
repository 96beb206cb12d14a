"""What the console knows, whatever it was read from: plain data, no widget."""

"""Widgets of the console, all drawn line by line from text that has been made safe."""

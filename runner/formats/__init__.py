"""Formats of episodes: those of trainers and of other tools, one module per family, registered as plugins."""

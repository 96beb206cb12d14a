"""The Textual application: its commands, its redrawing of screens, and its notifications."""

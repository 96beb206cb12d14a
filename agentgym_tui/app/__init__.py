"""The Textual application: its screens, its refresh loop and its notifications."""

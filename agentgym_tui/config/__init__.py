"""Settings, the user's keymap, and the UI state that is kept between sessions."""

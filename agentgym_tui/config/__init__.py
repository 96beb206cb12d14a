"""Settings, the user keymap and the UI state kept between sessions."""

"""Commands and their keys: the default keymap, and which commands are available in which situation."""

"""Commands and their keys: the default keymap, and which command is available when."""

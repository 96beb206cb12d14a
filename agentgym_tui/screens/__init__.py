"""The screens of the console and its dialogs."""

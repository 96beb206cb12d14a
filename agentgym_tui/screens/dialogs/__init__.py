"""Dialogs: confirmation, run form, battery picker, help, hex dump, command palette and quit."""

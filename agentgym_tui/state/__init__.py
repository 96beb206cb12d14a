"""State of the console as plain data, built from events, files and replies of nodes; independent of the widgets."""

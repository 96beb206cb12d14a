"""Environment servers as child processes of a node: start, supervision, logs and stop."""

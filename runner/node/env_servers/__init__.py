"""Processes of environment servers: start, supervise, log and stop them."""

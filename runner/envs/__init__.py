"""Environments, one module or package each, and the choice between playing them in this process and on a server."""

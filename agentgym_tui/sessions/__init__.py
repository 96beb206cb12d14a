"""Sessions with a node, a bus or files, from which the console gets its state and to which it sends commands."""

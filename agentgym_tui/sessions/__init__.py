"""Where the console gets its news and sends its orders: a node, a bus, files."""

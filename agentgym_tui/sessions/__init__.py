"""Sessions: where the console gets its state and sends its commands; a node, a bus, or files."""

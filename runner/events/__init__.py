"""Everything about the bus: what is said on it, the broker of a node, publishing without loss, and listening."""

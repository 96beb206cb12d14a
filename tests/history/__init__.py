"""A checker of recorded histories: faults against a real node, and the promises of `docs/reference/promises.md`."""

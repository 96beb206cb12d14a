"""The messages of the bus: durable events, live items, control requests, their codec and their subjects."""

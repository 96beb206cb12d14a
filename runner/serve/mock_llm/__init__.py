"""A test endpoint that replaces a language model: OpenAI's protocol, replies of an oracle or a script, faults."""

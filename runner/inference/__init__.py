"""LLM inference: a chain of endpoints with fallback, and the usage of each answer."""

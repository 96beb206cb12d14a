"""HTTP servers: environments over AgentGym's protocol, a test endpoint in place of a language model, their host."""

"""HTTP servers: environments with AgentGym's protocol, a test endpoint that replaces a language model, hosting."""

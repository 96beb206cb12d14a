"""AgentGym's own Evaluator, run from a checkout against our servers."""

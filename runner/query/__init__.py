"""The query language of filters and of ``agentgym-runner episodes``: syntax, fields, matching, and SQL."""

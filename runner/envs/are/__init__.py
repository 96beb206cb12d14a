"""Meta's Agents Research Environments (ARE) as environments, named ``are:<scenario>``.

ARE runs in a process of its own: only ``runner.envs.are.engine`` imports it, under ARE's interpreter. That process
loads ``tools``, ``scenario_scan`` and ``engine`` without this package's other modules, so these import nothing but the
standard library and ARE, and this file imports nothing.
"""

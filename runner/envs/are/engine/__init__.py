"""The process that runs ARE's scenarios: the only modules that import ``are``.

Started as a file, ``<ARE's interpreter> -s engine/__main__.py``, it needs the standard library, ARE, and
``runner.envs.are.tools``; ``__main__`` makes these importable without the rest of this project.
"""

"""The process that runs ARE's scenarios: the only modules that import ``are``.

Started as a file, ``<ARE's interpreter> -s engine/__main__.py``, it needs the standard library, ARE, and modules of
this project that need no other package; ``__main__`` makes these importable.
"""

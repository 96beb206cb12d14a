"""Entry point of ARE's process: ``python -s __main__.py CONTROL_FD SCRATCH_FOLDER MEMORY_MIB STEP_LIMIT_S``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def make_importable(package: Path) -> None:
    """Make ``runner.envs.are`` and ``runner.util`` importable, and nothing else of the folder that holds ``runner``.

    ARE's interpreter has other versions of the packages next to ``runner``, so that folder must not be on its path.
    """
    for name, folder in (
        ("runner", package.parents[1]),
        ("runner.util", package.parents[1] / "util"),
        ("runner.envs", package.parents[0]),
        ("runner.envs.are", package),
    ):
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]  # its modules have full names
    make_importable(here.parent)
    from runner.envs.are.engine.episode_server import Limits, serve

    serve(int(sys.argv[1]), Path(sys.argv[2]), Limits(int(sys.argv[3]), float(sys.argv[4])))

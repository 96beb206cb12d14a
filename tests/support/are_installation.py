"""A virtual environment with a package that looks like ARE: its source files are read, and must never be imported."""

from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import Final

OWN: Final = ("scenario_tutorial", "scenario_mcp_demo")
_EXPLODE: Final = "raise SystemExit('a scenario was imported')\n"


def create_installation(folder: Path, *, added: str | None = None) -> Path:
    """Create the environment and return its interpreter; ``added``: id of a scenario that another package adds."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    scenarios = packages / "are" / "simulation" / "scenarios"
    for name in OWN:
        _write(scenarios / name / "scenario.py", f'@register_scenario("{name}")\nclass Scenario: ...\n{_EXPLODE}')
    _write(scenarios / "utils" / "registry.py", f'@register_scenario("not_a_scenario")\nclass Sample: ...\n{_EXPLODE}')
    _write(scenarios / "broken" / "scenario.py", "@register_scenario('x'\n")
    _write(packages / "are" / "__init__.py", "")
    _write(packages / "are" / "simulation" / "__init__.py", _EXPLODE)
    _write_metadata(packages, "meta_agents_research_environments", "1.2.0")
    if added is not None:
        _write(packages / "lab" / "__init__.py", _EXPLODE)
        _write(packages / "lab" / "all.py", f'@registry.register("{added}")\nclass Own: ...\n{_EXPLODE}')
        _write_metadata(packages, "lab", "1", "[are.simulation.scenarios]\nlab = lab.all:register\n")
    return folder / "bin" / "python"


def _write_metadata(packages: Path, name: str, version: str, entry_points: str = "") -> None:
    folder = packages / f"{name}-{version}.dist-info"
    _write(folder / "METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    _write(folder / "entry_points.txt", entry_points)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

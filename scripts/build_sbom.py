"""Write the software bill of materials of the default install as CycloneDX 1.6 JSON, and its licences as a table.

    python -m scripts.build_sbom sbom.cdx.json    # the bill of materials
    python -m scripts.build_sbom docs/reference/licences.md # the table; a test checks the checked-in file

The default install is this package with everything that its dependencies require, without extras. Versions and hashes
come from ``requirements.lock``, names and licences from the installed packages; nothing is read from the network. The
output has neither a time nor a random number, so equal locks give equal files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PACKAGE = "agentgym-console"

LEFT_OUT: Final = frozenset({"pygame-ce"})
"""Requirements of the default install that the lock leaves out: minigrid uses pygame-ce (LGPL) only to draw worlds."""

ALLOWED: Final = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Zlib"}
)
"""SPDX ids that the default install may have; MPL-2.0 covers only changed files of certifi and shtab."""

_SPDX: Final = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2 license": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "mit license": "MIT",
}
"""Spellings of licences in the metadata of packages that do not use SPDX yet."""

_KNOWN: Final = {
    "antlr4-python3-runtime": "BSD-3-Clause",
    "nvidia-ml-py": "BSD-3-Clause",
    "omegaconf": "BSD-3-Clause",
}
"""Licences of packages whose metadata has only "BSD"; from their licence files or sources."""


@dataclass(frozen=True)
class LockedPackage:
    """An entry of ``requirements.lock``; ``hashes`` are the SHA-256 of all files of that version."""

    name: str
    version: str
    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def applies(self) -> bool:
        """Whether the entry is for this Python and platform."""
        return self.requirement.marker is None or self.requirement.marker.evaluate()


def main(arguments: Sequence[str]) -> None:
    """Write the file that the first argument names: Markdown, or else JSON."""
    path = Path(arguments[0])
    path.write_text(licence_table() if path.suffix == ".md" else json.dumps(sbom(), indent=2) + "\n", "utf-8")


def read_lock(text: str) -> list[LockedPackage]:
    """Parse ``requirements.lock``.

    Raises:
        ValueError: an entry has no exact version.
    """
    packages: list[LockedPackage] = []
    for entry in text.replace("\\\n", " ").splitlines():
        if not entry.strip() or entry.lstrip().startswith("#"):
            continue
        requirement = Requirement(entry.partition(" --hash")[0])
        exact = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
        if exact is None:
            raise ValueError(f"{entry.split()[0]} in {LOCK.name} has no exact version; write the lock again")
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
        packages.append(LockedPackage(canonicalize_name(requirement.name), exact[1], requirement, hashes))
    return packages


def locked_packages() -> dict[str, LockedPackage]:
    """Return the entries of the lock for this Python and platform, by name."""
    return {package.name: package for package in read_lock(LOCK.read_text("utf-8")) if package.applies}


def requirement_graph() -> dict[str, list[str]]:
    """Return the names of the default install, each with the names that it requires directly."""
    graph: dict[str, list[str]] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(PACKAGE, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        required = [each for each in _requirements(name, extras) if canonicalize_name(each.name) not in LEFT_OUT]
        names = {canonicalize_name(each.name) for each in required}
        graph[name] = sorted(names.union(graph.get(name, ())))
        waiting += [(canonicalize_name(each.name), frozenset(each.extras)) for each in required]
    return dict(sorted(graph.items()))


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in ("", *extras)):
            yield requirement


def licence(name: str) -> str:
    """Return the licence of an installed package as an SPDX expression, or as its metadata spells it."""
    if name in _KNOWN:
        return _KNOWN[name]
    package = metadata.metadata(name)
    if "License-Expression" in package:
        return package["License-Expression"]
    labels = [line.rpartition(" :: ")[2] for line in package.get_all("Classifier") or () if line.startswith("License")]
    (text,) = package.get_all("License") or ("",)
    first_line = (text.strip() or " AND ".join(labels) or "unknown").splitlines()[0]
    return _SPDX.get(first_line.lower(), first_line)


def is_allowed(expression: str) -> bool:
    """Return whether ``ALLOWED`` has all licences of an expression, or one of each alternative."""
    if "(" in expression:  # nested: every licence that it names must be allowed
        return set(re.findall(r"[^\s()]+", expression)) - {"AND", "OR"} <= ALLOWED
    alternatives = re.split(r"\s+OR\s+", expression)
    return any(set(re.split(r"\s+AND\s+", each)) <= ALLOWED for each in alternatives)


def sbom() -> dict[str, Any]:
    """Return the default install as a CycloneDX 1.6 document."""
    graph, locked = requirement_graph(), locked_packages()
    version = metadata.version(PACKAGE)
    refs = {name: _purl(name, locked[name].version if name in locked else version) for name in graph}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(PACKAGE, version, "application")},
        "components": [_locked_component(locked[name]) for name in graph if name != PACKAGE],
        "dependencies": [{"ref": refs[name], "dependsOn": [refs[each] for each in graph[name]]} for name in graph],
    }


def _locked_component(package: LockedPackage) -> dict[str, Any]:
    # one hash for each file of the version (wheels and source); pip accepts exactly these
    hashes = [{"alg": "SHA-256", "content": each} for each in package.hashes]
    return {**_component(package.name, package.version, "library"), "hashes": hashes}


def _component(name: str, version: str, kind: str) -> dict[str, Any]:
    expression, purl = licence(name), _purl(name, version)
    # "expression" must be SPDX; any other text is the name of a licence
    licences = [{"expression": expression}] if is_allowed(expression) else [{"license": {"name": expression}}]
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": licences}


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def licence_table() -> str:
    """Return the licences of the default install as Markdown, without versions: they stand in the lock."""
    rows = [f"| {name} | {licence(name)} |" for name in requirement_graph() if name != PACKAGE]
    return "\n".join([_TABLE_INTRO, "| package | licence |", "|---|---|", *rows]) + "\n"


_TABLE_INTRO = """# Licences of the default install

AgentGym Console is under the MIT licence. What `make install` adds to run it, without the development tools, is below;
`make sbom` writes the same packages with versions and hashes as CycloneDX.
`python -m scripts.build_sbom docs/reference/licences.md` generates the table on Linux; a test checks it, and that no
licence is unknown or copyleft (GPL, LGPL, AGPL).

- `certifi` and `shtab` are under the MPL-2.0, which covers only changes of their own files.
- `pygame-ce` (LGPL-2.1) is left out: minigrid imports it only to draw worlds, and BabyAI draws none. minigrid still
  requires it, so `pip install agentgym-console` without the lock installs it, and `pip check` reports it as missing
  after `make install`.
- The wheels of `numpy` contain the GCC runtime library (GPL-3.0 with the GCC Runtime Library Exception, which allows
  any use).
"""


if __name__ == "__main__":
    main(sys.argv[1:])

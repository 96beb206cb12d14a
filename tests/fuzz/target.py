"""Fuzz targets by name: each is a module of ``tests/fuzz/targets`` whose function ``check`` takes any bytes.

``check`` returns for every input, or raises what it found. A module may also define ``TOKENS``, bytes that the fuzzer
inserts, ``MAX_LEN``, the largest input in bytes, and ``SHARE``, by which a slow target gets more of the time.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]
DEFAULT_MAX_LEN: Final = 4096
_COMMENT: Final = "#"


class Target(NamedTuple):
    """A fuzz target; ``check`` raises for an input that breaks a promise."""

    name: str
    check: Callable[[bytes], None]
    tokens: tuple[bytes, ...]
    max_len: int
    share: int = 1


def target_names() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "targets").glob("*.py"))


def load_target(name: str) -> Target:
    module: Any = importlib.import_module(f"tests.fuzz.targets.{name}")
    tokens, max_len = getattr(module, "TOKENS", ()), getattr(module, "MAX_LEN", DEFAULT_MAX_LEN)
    return Target(name, module.check, tokens, max_len, getattr(module, "SHARE", 1))


def corpus_file(name: str) -> Path:
    return FOLDER / "corpus" / f"{name}.txt"


def load_corpus(name: str) -> list[bytes]:
    """Return the inputs kept in the repository: one literal of bytes per line, and comments."""
    lines = corpus_file(name).read_text("ascii").splitlines()
    return [ast.literal_eval(line) for line in lines if line and not line.startswith(_COMMENT)]


def append_to_corpus(name: str, inputs: Iterable[bytes]) -> int:
    """Append the inputs that the kept corpus does not have yet; return their number."""
    path = corpus_file(name)
    known = set(load_corpus(name)) if path.exists() else set()
    new = [each for each in dict.fromkeys(inputs) if each not in known]
    with path.open("a", encoding="ascii") as file:
        file.writelines(f"{each!a}\n" for each in new)
    return len(new)

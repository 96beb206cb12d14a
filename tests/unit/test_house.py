"""Checks of layout and wording that ruff, mypy and import-linter cannot do."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("runner", "agentgym_tui")
LOOSE_MODULES = {
    "runner": {"__init__.py", "errors.py", "library.py", "plugins.py"},
    "agentgym_tui": {"__init__.py", "cli.py", "safe_text.py", "textual_compat.py"},
}
MAX_LINES, SMALL, MAX_SMALL_FILES = 750, 65, 25
REPEATED_BY_DESIGN = {"__init__.py", "environment.py", "oracle.py", "screen.py"}
BANNED = re.compile(r"\b(?:asked|told|says|said|tells?|nobody|whoever)\b", re.IGNORECASE)
ENVIRONMENT_TEXTS = ("runner/envs/", "runner/agents/model/react.py")
"""Modules whose literals are AgentGym's own texts."""


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of every docstring, and of every literal that a person may read."""
    name = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    literals = {
        id(node.value): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    if not name.startswith(ENVIRONMENT_TEXTS):
        literals |= {id(node): node for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for node in literals.values():
        if isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_in_subpackages(package: str) -> None:
    assert {path.name for path in (ROOT / package).glob("*.py")} == LOOSE_MODULES[package]


def test_files_are_neither_too_small_nor_too_large() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert [path.name for path, n in lines.items() if n > MAX_LINES] == []
    small = [path for path, n in lines.items() if n < SMALL and path.name not in ("__init__.py", "__main__.py")]
    assert len(small) <= MAX_SMALL_FILES, [str(path.relative_to(ROOT)) for path in small]


def test_a_file_name_is_used_at_most_three_times() -> None:
    counts = Counter(path.name for path in modules() if path.name not in REPEATED_BY_DESIGN)
    assert {name: n for name, n in counts.items() if n > 3} == {}


def test_docstrings_and_messages_are_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in modules()
        if BANNED.search(path.read_text(encoding="utf-8"))  # parsing every module takes seconds
        for line, text in texts(path)
        for match in BANNED.finditer(text)
    ]
    assert found == []


def test_the_search_covers_docstrings_and_messages(tmp_path: Path) -> None:
    module = tmp_path / "runner" / "module.py"
    module.parent.mkdir()
    module.write_text('"""What was told."""\nMESSAGE = f"nobody {1 + 1} said"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "ROOT", tmp_path)
        assert [match[0] for _, text in texts(module) for match in BANNED.finditer(text)] == ["told", "nobody", "said"]

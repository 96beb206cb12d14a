"""Checks of layout and wording that ruff, mypy and import-linter cannot do."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("runner", "agentgym_tui")
LOOSE_MODULES = {
    "runner": {"__init__.py", "errors.py", "library.py", "plugins.py"},
    "agentgym_tui": {
        "__init__.py",
        "app.py",
        "cli.py",
        "commands.py",
        "config.py",
        "logs.py",
        "notifications.py",
        "safe_text.py",
        "services.py",
        "sinks.py",
        "terminal.py",
        "textual_compat.py",
    },
}
MAX_LINES, SMALL, MAX_SMALL_FILES = 750, 65, 25
REPEATED_BY_DESIGN = {"__init__.py", "environment.py", "oracle.py", "screen.py"}
MAX_BODY = 46
MAX_ANCESTORS = 3
BANNED = re.compile(r"\b(?:asked|told|says|said|tells?|nobody|whoever)\b", re.IGNORECASE)
ENVIRONMENT_TEXTS = ("runner/envs/", "runner/agents/model/react.py")
"""Modules whose literals are AgentGym's own texts."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of every docstring, and of every literal that a person may read."""
    name = path.relative_to(ROOT).as_posix()
    tree = parsed(path)
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


def test_functions_are_one_thought() -> None:
    too_long = {
        node.name
        for path in modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and n_body_lines(node) > MAX_BODY
    }
    assert too_long == set()


def test_no_class_is_split_over_a_chain_of_base_classes() -> None:
    """Counts the ancestors of ours of each class of the console; Textual's own do not count."""
    found = {
        f"{kind.__module__}.{kind.__qualname__}": ancestors
        for path in (ROOT / "agentgym_tui").rglob("*.py")
        for kind in vars(import_module(module_name(path))).values()
        if isinstance(kind, type) and kind.__module__ == module_name(path)
        if len(ancestors := [each.__name__ for each in kind.__mro__[1:] if each.__module__.startswith("agentgym_tui")])
        > MAX_ANCESTORS
    }
    assert found == {}


def n_body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's body without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_have_no_circles(package: str) -> None:
    assert circles(imports_inside(package)) == []


def imports_inside(package: str) -> dict[str, set[str]]:
    """Return the modules that each module of a package imports from it, for types, too; names start in the package."""
    files = {module_name(path): path for path in modules() if path.is_relative_to(ROOT / package)}
    imports: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                imports[name] |= {each if each in files else node.module for each in full} & files.keys() - {name}
    short = len(package) + 1
    return {name[short:]: {each[short:] for each in imported} for name, imported in imports.items()}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import one another, directly or by others."""
    reached = {name: reachable(imports, name) for name in imports}
    found = [{other for other in reached[name] if name in reached[other]} for name in sorted(imports)]
    return [circle for i, circle in enumerate(found) if circle and circle not in found[:i]]


def reachable(imports: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = imports[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen

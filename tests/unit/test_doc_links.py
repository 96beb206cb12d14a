"""Links between the documents, pages that code names, one version number, and one list of quick checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import agentgym_tui.cli
import runner.cli
from runner import __version__
from tests.support.command import REPOSITORY

FOREIGN = {"docs/api.md", "docs/references/production_metrics.md"}
"""Pages of Ollama and SGLang, the sources of recorded texts."""
PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them; a repeated heading has only its first one."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_document_leads_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_every_page_is_reached_from_the_index() -> None:
    index, reached = REPOSITORY / "docs/index.md", set[Path]()
    waiting = [index]
    while waiting:
        page = waiting.pop().resolve()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            links = re.findall(r"\]\((?![a-z]+:)([^)\s#]+)", page.read_text("utf-8"))
            waiting += [page.parent / link for link in links]
    assert [page for page in (REPOSITORY / "docs").rglob("*.md") if page.resolve() not in reached] == []


def test_every_page_that_code_names_exists() -> None:
    folders = ("runner", "agentgym_tui", "scripts", "configs", "tests")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in {".py", ".yaml"}]
    named = {name for path in files for name in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", path.read_text("utf-8"))}
    assert len(named) > 8
    assert [name for name in sorted(named - FOREIGN) if not (REPOSITORY / name).exists()] == []


def test_the_newest_version_of_the_change_log_is_the_version_of_both_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", changes, re.MULTILINE)
    assert versions[0] == __version__ and len(set(versions)) == len(versions)
    for main in (runner.cli.main, agentgym_tui.cli.main):
        with pytest.raises(SystemExit, match="0"):
            main(["--version"])
    assert capsys.readouterr().out.splitlines() == [f"agentgym-runner {__version__}", f"agentgym-tui {__version__}"]


def test_make_check_runs_every_hook() -> None:
    (local,) = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    recipe = (REPOSITORY / "Makefile").read_text("utf-8").replace("$(BIN)", ".venv/bin")
    assert local["repo"] == "local" and len(local["hooks"]) == 4
    assert [hook["id"] for hook in local["hooks"] if f"\t{hook['entry']}" not in recipe] == []

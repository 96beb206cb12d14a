"""No file that we write refers to anything on the network: opening one reveals nothing to a third party."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tui.config import default_settings_text
from tests.support.command import REPOSITORY, run_agentgym
from tests.support.network_references import svg_references, url_references

PICTURES = sorted((REPOSITORY / "docs" / "pictures").glob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_pictures_of_the_documentation_refer_to_nothing_on_the_network(picture: Path) -> None:
    assert svg_references(picture.read_text("utf-8")) == []


def test_the_default_settings_refer_to_nothing_on_the_network(tmp_path: Path) -> None:
    assert url_references(default_settings_text(tmp_path / "console.yaml").encode()) == []


@pytest.mark.long
def test_files_of_a_batch_refer_to_nothing_on_the_network(tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--run", "maze", "--agent", "oracle", "--data-dir", str(tmp_path / "data"))
    assert completed.returncode == 0, completed.stderr
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert {".json", ".pftrace", ".sqlite"} <= {path.suffix for path in files}
    assert {path.name: found for path in files if (found := url_references(path.read_bytes()))} == {}


@pytest.mark.parametrize(
    "reference",
    [
        '<style>@font-face { src: url("https://cdnjs.example/x.woff2") }</style>',
        "<style>@import 'x.css';</style>",
        '<image href="x.png"/>',
        '<a href="//host/x"><text>x</text></a>',
        "<!-- https://www.textualize.io -->",
        "<script>1</script>",
    ],
)
def test_references_are_found(reference: str) -> None:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg"><g clip-path="url(#a)"/>{reference}<text>http://x</text></svg>'
    assert svg_references(svg)
    assert svg_references(svg.replace(reference, "")) == []

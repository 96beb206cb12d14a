from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from agentgym_tui.safe_text import has_unsafe_chars, unsafe_excerpt
from agentgym_tui.services import (
    MAX_CLIPBOARD_BYTES,
    MAX_COPIES,
    ExportError,
    clipboard_text,
    copy_summary,
    export_episode,
    remove_network_references,
)
from tests.support.console.samples import HOSTILE, episode_id
from tests.support.full_disk import FileSizeLimit
from tests.support.network_references import svg_references

ID = episode_id(7)


def test_an_export_is_private_and_a_byte_for_byte_copy(tmp_path: Path) -> None:
    path = export_episode(ID, b'{"a": 1}\x1b', tmp_path)
    assert path == tmp_path / f"{ID}.json"
    assert path.read_bytes() == b'{"a": 1}\x1b'
    assert path.stat().st_mode & 0o777 == 0o600


def test_neither_a_file_nor_the_target_of_a_link_is_overwritten(tmp_path: Path) -> None:
    existing, link_target = tmp_path / f"{ID}.json", tmp_path / "elsewhere"
    existing.write_text("mine")
    (tmp_path / f"{ID}-2.json").symlink_to(link_target)
    assert export_episode(ID, b"x", tmp_path) == tmp_path / f"{ID}-3.json"
    assert existing.read_text() == "mine"
    assert not link_target.exists()


def test_the_number_of_copies_is_limited(tmp_path: Path) -> None:
    for _ in range(MAX_COPIES):
        export_episode(ID, b"", tmp_path)
    with pytest.raises(ExportError, match="move them away"):
        export_episode(ID, b"", tmp_path)


@pytest.mark.parametrize("hostile", ["../x", "", HOSTILE, "a/b", ID + "\n", ID.lower()])
def test_only_an_episode_id_is_a_valid_file_name(hostile: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not a valid file name"):
        export_episode(hostile, b"x", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_reported_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"gone is not writable: No such file.*start the console in another"):
        export_episode(ID, b"x", tmp_path / "gone")


def test_control_characters_of_a_copied_text_are_made_visible_unless_raw() -> None:
    assert clipboard_text("ab\n\tc", raw=False) == ("ab\n\tc", 5, 5)
    safe = clipboard_text(HOSTILE, raw=False).text
    assert not has_unsafe_chars(safe.replace("\t", ""))
    assert "␛" in safe
    raw = clipboard_text(HOSTILE, raw=True).text
    assert "\x1b[2J" in raw
    assert raw == HOSTILE.replace("\ud800", "?")


@pytest.mark.parametrize("character", ["a", "é", "漢", "👩"])
def test_a_copy_is_limited_and_ends_at_a_character_boundary(character: str) -> None:
    for text in (character * MAX_CLIPBOARD_BYTES * 2, "x" + character * (MAX_CLIPBOARD_BYTES // 4)):
        copy = clipboard_text(text, raw=True)
        assert MAX_CLIPBOARD_BYTES - 4 < copy.n_bytes <= MAX_CLIPBOARD_BYTES or copy.text == text
        assert copy.n_bytes == len(copy.text.encode()) <= MAX_CLIPBOARD_BYTES
        assert text.startswith(copy.text)
        assert copy.n_total == len(text.encode())
    copy = clipboard_text("\U000e0041" * MAX_CLIPBOARD_BYTES, raw=False)
    assert copy.n_bytes <= MAX_CLIPBOARD_BYTES and copy.n_total > copy.n_bytes, "what is made visible counts"


def test_the_copy_summary_states_how_much_was_sent() -> None:
    where = "to the terminal's clipboard (OSC 52)"  # terminals do not acknowledge a copy
    assert copy_summary(clipboard_text("abc", raw=True), "path", {}) == f"sent the path (3 bytes) {where}"
    step = clipboard_text("a" * 2048, raw=True)
    assert copy_summary(step, "step", {}, raw=True) == f"sent the step (2.0 KiB, unchanged) {where}"
    large = clipboard_text("a" * (3 << 20), raw=True)
    assert copy_summary(large, "view", {}) == f"sent the first 100.0 KiB of the view (3.0 MiB) {where}"
    assert copy_summary(large, "view", {}, whole="export has it").endswith(f"{where}; export has it")
    assert "set -g set-clipboard on" in copy_summary(
        clipboard_text("abc", raw=True), "path", {"TMUX": "/tmp/tmux-0/default,1,0"}
    )


def test_a_file_that_does_not_fit_on_the_disk_is_removed(tmp_path: Path) -> None:
    disk = FileSizeLimit(os.getpid())
    disk.fill()
    try:
        with pytest.raises(ExportError, match="File too large"):
            export_episode(ID, b"x", tmp_path)
    finally:
        disk.free_space()
    assert not list(tmp_path.iterdir())


def test_a_picture_keeps_its_text_and_loses_its_web_fonts() -> None:
    text = "@font-face { src: url(https://host/x) } <!-- a --> </style> font-family: Fira Code, monospace;"
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(text, markup=False)
    svg = console.export_svg(title="a title")
    assert "https://" in svg.partition("</style>")[0]
    clean = remove_network_references(svg)
    assert svg_references(clean) == []
    assert clean.partition("</style>")[2] == svg.partition("</style>")[2]
    assert remove_network_references(clean) == clean


@pytest.mark.parametrize("unsafe", ["\x1b", "\ue000", "\u0301" * 3, "\u200b"])
@pytest.mark.parametrize("n_before", [0, 63, 64, 1000])
def test_the_excerpt_for_a_hex_dump_starts_shortly_before_the_first_unsafe_character(
    unsafe: str, n_before: int
) -> None:
    excerpt = unsafe_excerpt("e\u0301\r\n" * 16 + "x" * n_before + unsafe + "y" * 500)
    assert unsafe in excerpt[:68]
    assert unsafe_excerpt("plain\r\ntext\r") == "plain\r\ntext\r"

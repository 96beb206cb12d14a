"""The tools of the fuzz targets: changes of JSON, the corpora, the terminal emulator."""

from __future__ import annotations

import json
from pathlib import Path

import pyte
import pytest

from tests.fuzz import json_mutator
from tests.fuzz import target as targets
from tests.fuzz.emulator import Emulator
from tests.fuzz.target import append_to_corpus, load_corpus

HEAD, BODY = b"subject\nname: value\n\n", b'{"a":[1,"text",{"b":null}],"c":true}'


def keep(data: bytes, max_size: int) -> bytes:
    return data[:max_size]


def test_json_is_changed_by_its_structure_and_the_lines_around_it_stay() -> None:
    changed = {json_mutator.mutate(HEAD + BODY, 4096, seed, keep) for seed in range(200)}
    structural = [each for each in changed if each != HEAD + BODY]
    assert len(structural) > 50
    assert all(each.startswith(HEAD) for each in structural)
    for each in structural:
        json.loads(each[len(HEAD) :].decode("utf-8", "surrogatepass"))


def test_a_change_is_reproducible_and_keeps_the_limit() -> None:
    for seed in range(100):
        first, second = (json_mutator.mutate(BODY, 60, seed, keep) for _ in range(2))
        assert first == second and len(first) <= 60


def test_numbers_of_any_size_are_changed() -> None:
    huge = b'{"a":1' + b"0" * 400 + b"}"
    assert all(json_mutator.mutate(huge, 4096, seed, keep) for seed in range(300))


def test_text_without_json_is_left_to_the_fuzzer() -> None:
    assert all(json_mutator.mutate(b"{ no json", 100, seed, lambda *_: b"bytes") == b"bytes" for seed in range(20))


def test_a_corpus_has_each_input_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "FOLDER", tmp_path)
    (tmp_path / "corpus").mkdir()
    assert append_to_corpus("x", [b"\x1b\n'\"", b"b", b"b"]) == 2
    assert append_to_corpus("x", [b"b", b"c"]) == 1
    assert load_corpus("x") == [b"\x1b\n'\"", b"b", b"c"]


def test_the_emulator_knows_wide_and_combined_characters() -> None:
    emulator = Emulator(10, 2)
    stream = pyte.Stream(emulator)
    stream.feed("a漢e\u0301z")
    assert [emulator.cell(x, 0) for x in range(6)] == ["a", "漢", "", "e\u0301", "z", " "]
    stream.feed("\x1b[1;3Hx")  # the second half of a wide character
    assert emulator.row(0).rstrip() == "a xe\u0301z"

"""Every input of the corpora passes its target: valid ones, and those that once broke a promise."""

from __future__ import annotations

import pytest

from tests.fuzz.target import load_corpus, load_target, target_names


@pytest.mark.parametrize("name", target_names())
def test_the_corpus_passes(name: str) -> None:
    target = load_target(name)
    corpus = load_corpus(name)
    assert corpus
    for data in corpus:
        try:
            target.check(data)
        except Exception as exc:
            exc.add_note(f"input: {data!r}")
            raise

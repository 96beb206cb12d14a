"""Process that fuzzes one target with atheris; ``python -m tests.fuzz.worker TARGET [options of libFuzzer]``."""

from __future__ import annotations

import logging
import sys

import atheris

from tests.fuzz import json_mutator
from tests.fuzz.target import load_corpus, load_target

INSTRUMENTED = ["runner", "agentgym_tui"]


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    return json_mutator.mutate(data, max_size, seed, atheris.Mutate)


def main() -> None:
    name, *options = sys.argv[1:]
    logging.disable()
    # Modules that the target imports on its first inputs are instrumented, too.
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load_target(name)
        for data in load_corpus(name):
            target.check(data)
        # The fuzzer starts its own command again when it merges.
        atheris.Setup([f"{sys.executable} -m tests.fuzz.worker {name}", *options], target.check, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

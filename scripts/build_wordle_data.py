"""Build ``data/wordle/words.txt`` from a word list, e.g. that of Debian's package ``wamerican-small``.

    python scripts/build_wordle_data.py /usr/share/dict/american-english-small

The same list gives the same bytes: five lower-case ASCII letters, sorted, each word once. The notice that has to
travel with the words is ``data/wordle/LICENSE``, the package's ``copyright`` file.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "data" / "wordle" / "words.txt"
_WORD = re.compile(r"[a-z]{5}")


def five_letter_words(lines: list[str]) -> list[str]:
    """The words that a guess can be, sorted and without repeats."""
    return sorted({word for line in lines if _WORD.fullmatch(word := line.strip())})


def main() -> None:
    """Read the list named on the command line and write the words."""
    parser = argparse.ArgumentParser(description="Filter a word list down to Wordle's words.")
    parser.add_argument("word_list", type=Path, help="a file with one word a line, UTF-8")
    parser.add_argument("--output", type=Path, default=TARGET)
    arguments = parser.parse_args()
    words = five_letter_words(arguments.word_list.read_text("utf-8").splitlines())
    arguments.output.write_text("".join(f"{word}\n" for word in words), "utf-8")


if __name__ == "__main__":
    main()

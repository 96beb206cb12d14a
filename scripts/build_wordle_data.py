"""Build ``data/wordle/words.txt`` from a word list, such as Debian's package ``wamerican-small``.

    python scripts/build_wordle_data.py /usr/share/dict/american-english-small

The output is deterministic: words of five lower-case ASCII letters, sorted, without duplicates. The required license
notice is ``data/wordle/LICENSE``, the package's ``copyright`` file.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "data" / "wordle" / "words.txt"
_WORD = re.compile(r"[a-z]{5}")


def five_letter_words(lines: list[str]) -> list[str]:
    """Return the words of five lower-case letters, sorted and without duplicates."""
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

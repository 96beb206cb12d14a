"""The filter of a list: the words that each shown row must contain."""

from __future__ import annotations

from collections.abc import Iterable


class Query:
    """The words of a filter; a row matches if it contains all of them, in any order, in upper or lower case.

    In bytes, only ASCII letters match in both cases, so that files and payloads are searched without decoding them.

    Args:
        text: words separated by blanks; without words, every row matches.

    Attributes:
        words: the words in lower case.
        needles: the words as bytes, ASCII letters in lower case.
    """

    def __init__(self, text: str = "") -> None:
        self.words = tuple(text.lower().split())
        self.needles = tuple(word.encode("utf-8", "replace").lower() for word in text.split())
        self._folded = tuple(text.casefold().split())

    def __bool__(self) -> bool:
        return bool(self.words)

    @property
    def text(self) -> str:
        """The words in lower case, separated by blanks."""
        return " ".join(self.words)

    def matches(self, folded: str) -> bool:
        """Return whether a text that was converted by ``str.casefold`` contains all words."""
        return all(word in folded for word in self._folded)

    def matches_bytes(self, parts: Iterable[bytes]) -> bool:
        """Return whether each word is in one of the parts; a part that cannot change the answer is not requested."""
        missing = self.needles
        if missing:
            for part in parts:
                lower = part.lower()
                missing = tuple(needle for needle in missing if needle not in lower)
                if not missing:
                    break
        return not missing

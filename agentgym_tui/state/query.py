"""The filter of a list: the words that each shown row must contain."""

from __future__ import annotations

from collections.abc import Iterable


class Query:
    """The words of a filter; a row matches if it contains all of them, in any order, in upper or lower case.

    Files and payloads are searched without decoding them: in bytes, only ASCII letters match in both cases, and other
    letters as entered or in lower case.

    Args:
        text: words separated by blanks; without words, every row matches.

    Attributes:
        words: the words in lower case.
        needles: for each word its forms as bytes, one of which must occur: as entered and in lower case, ASCII letters
            always in lower case. Most words have only one form.
    """

    def __init__(self, text: str = "") -> None:
        self.words = tuple(text.lower().split())
        self.needles = tuple(
            tuple(dict.fromkeys(form.encode("utf-8", "replace").lower() for form in (word, word.lower())))
            for word in text.split()
        )
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
                missing = tuple(forms for forms in missing if not any(form in lower for form in forms))
                if not missing:
                    break
        return not missing

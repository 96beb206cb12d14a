"""What a model thought aloud, apart from what it answered."""

from __future__ import annotations

import re

_OPEN, _CLOSE = re.compile(r"<think(?:ing)?>", re.IGNORECASE), re.compile(r"</think(?:ing)?>", re.IGNORECASE)


def split_thinking(text: str) -> tuple[str, str]:
    """The texts of all ``<think>`` blocks, and the rest, both stripped.

    A block that is never closed lasts to the end, and one that was opened by the prompt begins with the text.
    """
    thoughts, answers, position = [], [], 0
    first_open, first_close = _OPEN.search(text), _CLOSE.search(text)
    if first_close and (first_open is None or first_close.start() < first_open.start()):
        thoughts.append(text[: first_close.start()])
        position = first_close.end()
    while opened := _OPEN.search(text, position):
        answers.append(text[position : opened.start()])
        closed = _CLOSE.search(text, opened.end())
        thoughts.append(text[opened.end() : closed.start() if closed else len(text)])
        position = closed.end() if closed else len(text)
    answers.append(text[position:])
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(answers).strip()

"""A broken promise, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from tests.history.records import AnyRecord

Promise: TypeAlias = Literal[
    "accepted", "finished", "stored", "told", "shown", "resumed", "live", "bounded", "recovered"
]
MAX_EVIDENCE_CHARS = 400


@dataclass(frozen=True)
class Violation:
    """One violation.

    Attributes:
        promise: name of the promise, as in ``docs/reference/promises.md``.
        sentence: what is wrong, with ids and values.
        evidence: the records that prove it.
    """

    promise: Promise
    sentence: str
    evidence: tuple[AnyRecord, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        lines = [f"{self.promise}: {self.sentence}"]
        for record in self.evidence:
            text = msgspec.json.encode(record).decode()
            lines.append(f"    {text if len(text) <= MAX_EVIDENCE_CHARS else text[:MAX_EVIDENCE_CHARS] + '…'}")
        return "\n".join(lines)

"""Token ids and log-probabilities of model calls, as the endpoint sent them, labelled for training.

A call becomes one ``TokenSequence``. Nothing is tokenised again, so a sequence has exactly the tokens that the model
read and sampled, or names in ``problems`` what is missing. The sequences of a step are stored together as a record.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

MAX_TOKEN_ID: Final = 2**31 - 1
MAX_SEQUENCE_IDS: Final = 1 << 20
"""Maximum number of prompt ids, and of completion ids, of one sequence; more are dropped, see ``too_long``."""
MAX_RECORD_BYTES: Final = 32 << 20
"""Maximum size in bytes of an unpacked record; sequences beyond it are stored without their ids."""
MAX_EPISODE_BYTES: Final = 64 << 20
"""Maximum size in bytes of the packed records of one episode; later sequences are stored without their ids."""

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Label: TypeAlias = Literal["agent", "auxiliary", "discarded"]
"""``agent``: the answer became the action of a step; ``auxiliary``: another call of the agent; ``discarded``: a retry
or another endpoint replaced the answer, or its step did not end."""
Problem: TypeAlias = Literal["no_ids", "no_prompt_ids", "no_logprobs", "incomplete", "unequal", "invalid", "too_long"]
"""What a sequence lacks.

``no_ids``: the endpoint sent no ids of the completion; ``no_prompt_ids``, ``no_logprobs``: none of these;
``incomplete``: fewer or more completion ids than the endpoint counted; ``unequal``: another number of log-probabilities
than of ids; ``invalid``: values that are no ids were ignored; ``too_long``: ids were dropped,
because a bound was reached.
"""
LOST: Final[frozenset[Problem]] = frozenset({"no_ids", "no_prompt_ids", "incomplete", "invalid", "too_long"})
"""Problems with which it is unknown which tokens the model read or sampled."""


class TokenSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of one model call.

    Attributes:
        logprobs: natural logarithms of their probabilities, one per completion id.
        n_completion: completion tokens as the endpoint counted them; None if it did not.
        cause: why the answer was discarded.
    """

    label: Label = "agent"
    endpoint: str = ""
    model: str = ""
    prompt_ids: list[TokenId] = []
    completion_ids: list[TokenId] = []
    logprobs: list[float] = []
    n_completion: int | None = None
    problems: tuple[Problem, ...] = ()
    cause: str = ""

    @property
    def is_trained(self) -> bool:
        """Whether a trainer can use the completion: it is the agent's, and all ids are known."""
        return self.label == "agent" and bool(self.completion_ids) and LOST.isdisjoint(self.problems)

    @property
    def loss_mask(self) -> list[int]:
        """One number per id, first those of the prompt: 1 for the completion of a trained sequence, else 0."""
        return [0] * len(self.prompt_ids) + [int(self.is_trained)] * len(self.completion_ids)

    def discarded(self, cause: str) -> TokenSequence:
        """Return the sequence with the label ``discarded``, unless it has another label than ``agent`` already."""
        if self.label != "agent":
            return self
        return msgspec.structs.replace(self, label="discarded", cause=cause)

    def without_ids(self) -> TokenSequence:
        """Return the sequence without ids and log-probabilities, after a bound was reached."""
        problems = tuple(dict.fromkeys((*self.problems, "too_long")))
        return msgspec.structs.replace(self, prompt_ids=[], completion_ids=[], logprobs=[], problems=problems)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[list[TokenSequence]] = msgspec.msgpack.Decoder(list[TokenSequence])


def pack_sequences(sequences: Sequence[TokenSequence], max_bytes: int = MAX_EPISODE_BYTES) -> bytes:
    """Return the record of a step; sequences that would exceed a bound are stored without their ids."""
    data = _ENCODER.encode(sequences)
    if len(data) <= MAX_RECORD_BYTES and len(packed := zlib.compress(data)) <= max_bytes:
        return packed
    return zlib.compress(_ENCODER.encode([sequence.without_ids() for sequence in sequences]))


def unpack_sequences(record: bytes) -> list[TokenSequence]:
    """Raises ``ValueError`` if the record is damaged, or larger than ``MAX_RECORD_BYTES``."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(record, MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES or not unpacker.eof:
            raise ValueError("it is truncated or too large")
        return _DECODER.decode(data)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc

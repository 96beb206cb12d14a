"""Split of a model answer's and of a step's time: exact by the answer itself, else by the means of its server."""

from __future__ import annotations

from typing import Final

import msgspec

_ROUNDING: Final = 1.05
"""How much longer than the whole answer the server's own times may be, because its clock is another one."""


class AnswerTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Seconds of one model answer, from the request to the complete answer, and their parts; None: unknown.

    Attributes:
        queue_s: waiting for the server to begin, the network included.
        prefill_s: reading the prompt.
        decode_s: writing the answer.
        about: whether parts are estimates from the server's means over all requests.
    """

    total_s: float
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    about: bool = False

    def __add__(self, other: AnswerTimes) -> AnswerTimes:
        return AnswerTimes(
            total_s=self.total_s + other.total_s,
            queue_s=_sum_known(self.queue_s, other.queue_s),
            prefill_s=_sum_known(self.prefill_s, other.prefill_s),
            decode_s=_sum_known(self.decode_s, other.decode_s),
            about=self.about or other.about,
        )


def _sum_known(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


class Phases(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The wall time of one step, split into parts of so many seconds; None: unknown.

    Attributes:
        queue: waiting for the model's server to begin, the network included.
        prefill: the model reads the prompt.
        decode: the model writes its answer.
        model: all of the answer; what exceeds its three known parts is not known in detail.
        env: the environment's step and its picture.
        own: everything else: the agent's own work, rate limits, requests that failed, and waiting after a failure.
        about: whether parts of the answer are estimates from the server's means over all requests.
    """

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    model: float = 0.0
    env: float = 0.0
    own: float = 0.0
    about: bool = False

    @property
    def unsplit(self) -> float:
        return max(self.model - (self.queue or 0.0) - (self.prefill or 0.0) - (self.decode or 0.0), 0.0)


class ServerTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Mean seconds that recent requests of a server spent in each phase; None: unknown."""

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


def answer_times(
    total_s: float, ttft_s: float | None, reported: tuple[float | None, float | None], server: ServerTimes | None
) -> AnswerTimes:
    """Return the seconds of an answer and their parts, as far as they are known.

    ``ttft_s`` is None if it was not streamed; ``reported`` has prefill and decode as the answer itself reports them.
    """
    prefill_s, decode_s = reported
    if prefill_s is not None and decode_s is not None and prefill_s + decode_s <= total_s * _ROUNDING:
        queue_s = max(total_s - prefill_s - decode_s, 0.0)
        return AnswerTimes(total_s=total_s, queue_s=queue_s, prefill_s=prefill_s, decode_s=decode_s)
    if ttft_s is not None:
        return _streamed(total_s, min(ttft_s, total_s), server)
    return _whole(total_s, server)


def _streamed(total_s: float, ttft_s: float, server: ServerTimes | None) -> AnswerTimes:
    """Split the time before the first token as the server's means do; the time after it is measured."""
    decode_s = total_s - ttft_s
    if server is None or server.queue_s is None:
        return AnswerTimes(total_s=total_s, decode_s=decode_s)
    if server.prefill_s is None:
        queue_s = min(server.queue_s, ttft_s)
    else:
        queue_s = ttft_s * _share(server.queue_s, server.queue_s + server.prefill_s)
    return AnswerTimes(total_s=total_s, queue_s=queue_s, prefill_s=ttft_s - queue_s, decode_s=decode_s, about=True)


def _whole(total_s: float, server: ServerTimes | None) -> AnswerTimes:
    """Split an answer that was not streamed in the proportion of the server's means."""
    if server is None or server.prefill_s is None or server.decode_s is None:
        return AnswerTimes(total_s=total_s)
    queue_s = server.queue_s or 0.0
    known_s = queue_s + server.prefill_s + server.decode_s
    if known_s <= 0.0:
        return AnswerTimes(total_s=total_s)
    return AnswerTimes(
        total_s=total_s,
        queue_s=total_s * queue_s / known_s,
        prefill_s=total_s * server.prefill_s / known_s,
        decode_s=total_s * server.decode_s / known_s,
        about=True,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 0.0

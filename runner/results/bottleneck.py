"""Why episodes are slow at present: the shares of recent steps' time, and the cause with the largest, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from runner.types import skipped_endpoints
from runner.types.time_shares import Cause, TimedStep, TimeShares, percent_text, time_shares

FULL_CACHE: Final = 0.9
"""Used part of a KV cache from which on it is named as the reason of a queue."""
GATEWAY: Final = "TensorZero"
"""Product whose queue is that of its backend, which is an endpoint of its own."""


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a model server at present, as its metrics show it; ``server`` is its product name."""

    endpoint: str
    server: str
    waiting: float | None = None
    kv_cache: float | None = None
    tokens_per_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


class Bottleneck(msgspec.Struct, frozen=True):
    """What episodes wait for most; ``sentence`` holds untrusted names, and is empty for ``none``."""

    cause: Cause
    sentence: str = ""
    share: float = 0.0


def find_bottleneck(
    steps: Sequence[TimedStep],
    servers: Sequence[ServerState] = (),
    failing: Mapping[str, str] | None = None,
    *,
    is_down: bool = False,
) -> Bottleneck:
    """Return what recent steps waited for most; time of a model that is not split counts for what its server shows.

    Args:
        failing: the endpoints that fail now, in the order in which they are tried, and why each does.
        is_down: whether no endpoint answers, so that steps that need one cannot end.
    """
    failing, shares = failing or {}, time_shares(steps)
    if is_down and failing:
        return _failure((), failing, 1.0)
    if shares.total_s <= 0.0:
        return _without_steps(servers)
    server = _busiest(_answering(servers, steps))
    if server is not None:
        _split_by(shares, server)
    cause, share = shares.largest_first()[0]
    if cause == "endpoint":
        return _failure(steps, failing, share)
    return Bottleneck(cause, _sentence(cause, shares, server), share)


def _answering(servers: Sequence[ServerState], steps: Sequence[TimedStep]) -> Sequence[ServerState]:
    """Leave out servers for which no step has waited; behind a gateway, any server may have answered."""
    names = {step.endpoint for step in steps if step.endpoint}
    answering = [server for server in servers if server.endpoint in names]
    return servers if not names or any(server.server == GATEWAY for server in answering) else answering


def _busiest(servers: Sequence[ServerState]) -> ServerState | None:
    return max(servers, key=lambda each: each.waiting or 0.0, default=None)


def _split_by(shares: TimeShares, server: ServerState) -> None:
    """Give the seconds that are not split to the phases of the server, in the proportion of its means.

    Without means, a queue at the server explains them.
    """
    means: dict[Cause, float | None] = {"queue": server.queue_s, "prefill": server.prefill_s, "decode": server.decode_s}
    known = {cause: seconds for cause, seconds in means.items() if seconds}
    if shares.seconds["decode"] > 0.0:  # measured: what is not split passed before the first token
        known.pop("decode", None)
    if not known and (server.waiting or 0.0) >= 1.0:
        known = {"queue": 1.0}
    if known:
        unsplit_s, shares.seconds["model"] = shares.seconds["model"], 0.0
        shares.about = shares.about or unsplit_s > 0.0
        for cause, seconds in known.items():
            shares.seconds[cause] += unsplit_s * seconds / sum(known.values())


def _without_steps(servers: Sequence[ServerState]) -> Bottleneck:
    server = _busiest(servers)
    if server is None or (server.waiting or 0.0) < 1.0:
        return Bottleneck("none")
    return Bottleneck("queue", _queue_sentence(TimeShares(), server), 1.0)


def _failure(steps: Sequence[TimedStep], failing: Mapping[str, str], share: float) -> Bottleneck:
    answered = next((step.endpoint for step in reversed(steps) if step.endpoint and step.endpoint not in failing), None)
    names = dict(failing)
    for step in steps if not names else ():
        for name in skipped_endpoints(step.endpoint, step.warnings):
            reason = next((each for each in step.warnings if each.startswith(f"{name}: ")), "")
            names.setdefault(name, reason.partition(": ")[2])
    first = next(iter(names), "an endpoint")
    reason = f" ({names[first]})" if names.get(first) else ""
    instead = f"; {answered} answers instead" if answered else "; no other one answers"
    return Bottleneck("endpoint", f"an endpoint fails: {first}{reason}{instead}", share)


def _sentence(cause: Cause, shares: TimeShares, server: ServerState | None) -> str:
    part = _part(shares, cause)
    match cause:
        case "queue":
            return _queue_sentence(shares, server)
        case "prefill":
            return f"waiting for the model: it reads prompts for {part}"
        case "decode":
            speed = server and server.tokens_per_s
            rate = f", {speed:,.0f} tokens/s of all requests" if speed else ""
            return f"waiting for the model: it writes answers for {part}{rate}"
        case "model":
            return f"waiting for the model for {part}; its server does not show why"
        case "environment":
            return f"waiting for the environment for {part}"
    return f"the agent's own work and rate limits take {part}"


def _queue_sentence(shares: TimeShares, server: ServerState | None) -> str:
    if server is None or (server.waiting or 0.0) < 1.0:
        return f"waiting for the model: requests queue at its server for {_part(shares, 'queue')}"
    n = round(server.waiting or 0.0)
    full = server.kv_cache is not None and server.kv_cache >= FULL_CACHE
    cache = f", KV cache {percent_text(server.kv_cache or 0.0)}" if full else ""
    return f"waiting for the model: {n:,} request{'' if n == 1 else 's'} queued at {server.server}{cache}"


def _part(shares: TimeShares, cause: Cause) -> str:
    about = "about " if shares.about and cause in ("queue", "prefill", "decode") else ""
    per_step_s = shares.seconds.get(cause, 0.0) / max(shares.n, 1)
    return f"{about}{percent_text(shares.share(cause))} of the time ({per_step_s:.2g} s per step)"

"""A model server in numbers: draws the times of steps with one slow part, and writes the metrics of its server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from runner.episode.loop import step_phases
from runner.inference.metrics_text import SERVER_NAMES, parse_metrics
from runner.inference.server_metrics import increases, server_load
from runner.results.bottleneck import Bottleneck, ServerState, find_bottleneck
from runner.types import Action, TimeStep, Usage
from runner.types.phases import ServerTimes, answer_times
from runner.types.time_shares import Cause

Source: TypeAlias = Literal["answer", "stream", "metrics"]
"""Where the split of an answer comes from: its own timings, its first token and the metrics, or the metrics alone."""

PARTS: tuple[Cause, ...] = ("queue", "prefill", "decode", "environment", "endpoint", "own")
N_STEPS = 24


class SlowServer:
    """Draws steps in which ``cause`` takes longest, on average twice as long as the next part."""

    def __init__(self, cause: Cause, seed: int) -> None:
        self._cause = cause
        self._random = random.Random(f"{cause}{seed}")
        self._drawn = [self._draw() for _ in range(N_STEPS)]

    def _draw(self) -> dict[Cause, float]:
        parts = {part: self._random.uniform(0.02, 0.5) for part in PARTS}
        if self._random.random() < 0.7 or self._cause == "endpoint":
            parts[self._cause] = self._random.uniform(1.2, 3.0)
        if self._cause != "endpoint":
            parts["endpoint"] = 0.0
        return parts

    def metrics(self) -> ServerState:
        """Return the server's load as the node reads it from two texts of its ``/metrics``."""
        n = self._random.randrange(10, 10_000)
        before = parse_metrics(self._text(n, {"queue": 7.0, "prefill": 9.0, "decode": 11.0}))
        sums = {part: sum(drawn[part] for drawn in self._drawn) for part in ("queue", "prefill", "decode")}
        offset = {"queue": 7.0, "prefill": 9.0, "decode": 11.0}
        after = parse_metrics(self._text(n + N_STEPS, {part: offset[part] + sums[part] for part in offset}))
        assert before is not None
        assert after is not None
        load = server_load("lab", after, increases(before.values, after.values), 2.0)
        return ServerState(
            endpoint="lab",
            server=SERVER_NAMES[load.server],
            waiting=load.waiting,
            kv_cache=load.kv_cache,
            tokens_per_s=load.tokens_per_s,
            **msgspec.structs.asdict(load.times),
        )

    def _text(self, count: int, sums: dict[str, float]) -> bytes:
        is_full = self._cause == "queue"
        lines = [f'vllm:num_requests_waiting{{engine="0"}} {12 if is_full else self._random.randrange(2)}']
        lines += [f'vllm:kv_cache_usage_perc{{engine="0"}} {0.97 if is_full else self._random.uniform(0, 0.8)}']
        for part, seconds in sums.items():
            lines += [f"vllm:request_{part}_time_seconds_sum {seconds}"]
            lines += [f"vllm:request_{part}_time_seconds_count {count}"]
        return "\n".join(lines).encode()

    def steps(self, source: Source, server: ServerState) -> Iterator[TimeStep]:
        """Yield the steps as the runner records them."""
        means = ServerTimes(queue_s=server.queue_s, prefill_s=server.prefill_s, decode_s=server.decode_s)
        for index, drawn in enumerate(self._drawn):
            first_s = drawn["queue"] + drawn["prefill"]
            total_s = first_s + drawn["decode"]
            reported = (drawn["prefill"], drawn["decode"]) if source == "answer" else (None, None)
            times = answer_times(
                total_s, first_s if source == "stream" else None, reported, None if source == "answer" else means
            )
            warnings = ("gateway: no connection: refused",) if drawn["endpoint"] else ()
            usage = Usage(endpoint="lab", model="small", times=times, warnings=warnings)
            step = TimeStep(
                index=index,
                chats=[],
                action=Action(),
                observation=[],
                reward=0.0,
                done=False,
                model_s=total_s + drawn["own"] + drawn["endpoint"],
                env_s=drawn["environment"],
                endpoint="lab",
                warnings=warnings,
            )
            phases = step_phases(step.model_s + step.env_s, step, usage)
            yield msgspec.structs.replace(step, phases=phases)

    def bottleneck(self, source: Source) -> Bottleneck:
        """Return what the steps and the metrics show."""
        server = self.metrics()
        return find_bottleneck(list(self.steps(source, server)), [server])

"""The cause that slows episodes down, by steps and the metrics of the model's server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import msgspec
import pytest

from runner.episode.loop import step_phases
from runner.inference.metrics_text import SERVER_NAMES, parse_metrics
from runner.inference.server_metrics import increases, server_load
from runner.results.bottleneck import Bottleneck, ServerState, find_bottleneck
from runner.types import Action, Phases, TimeStep, Usage
from runner.types.phases import ServerTimes, answer_times
from runner.types.time_shares import Cause, time_shares

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


SEEDS = range(25)
BUSY = ServerState(endpoint="lab", server="vLLM", waiting=12.0, kv_cache=0.97)


def step(phases: Phases | None, *warnings: str) -> TimeStep:
    return TimeStep(
        index=0,
        chats=[],
        action=Action(),
        observation=[],
        reward=0.0,
        done=False,
        endpoint="lab",
        warnings=warnings,
        phases=phases,
    )


@pytest.mark.parametrize("source", get_args(Source))
@pytest.mark.parametrize("cause", PARTS)
def test_the_slow_part_is_named_with_every_seed(cause: Cause, source: Source) -> None:
    assert {seed: SlowServer(cause, seed).bottleneck(source).cause for seed in SEEDS} == dict.fromkeys(SEEDS, cause)


@pytest.mark.parametrize(
    ("phases", "warnings", "servers", "sentence"),
    [
        (Phases(model=4.0), (), [BUSY], "waiting for the model: 12 requests queued at vLLM, KV cache 97%"),
        (
            Phases(model=4.0, queue=3.0, prefill=0.5, decode=0.5, about=True),
            (),
            [],
            "waiting for the model: requests queue at its server for about 75% of the time (3 s per step)",
        ),
        (
            Phases(model=4.0, queue=0.0, prefill=3.0, decode=1.0),
            (),
            [],
            "waiting for the model: it reads prompts for 75% of the time (3 s per step)",
        ),
        (
            Phases(model=4.0, decode=3.0),
            (),
            [msgspec.structs.replace(BUSY, waiting=0.0, tokens_per_s=41.6)],
            "waiting for the model: it writes answers for 75% of the time (3 s per step), 42 tokens/s of all requests",
        ),
        (
            Phases(model=4.0),
            (),
            [],
            "waiting for the model for 100% of the time (4 s per step); its server does not show why",
        ),
        (Phases(env=3.0, own=1.0), (), [], "waiting for the environment for 75% of the time (3 s per step)"),
        (Phases(env=1.0, own=3.0), (), [], "the agent's own work and rate limits take 75% of the time (3 s per step)"),
        (
            Phases(model=1.0, own=3.0),
            ("gateway: no connection", "lab: x"),
            [],
            "an endpoint fails: gateway (no connection); lab answers instead",
        ),
    ],
)
def test_the_sentence_names_what_is_waited_for(
    phases: Phases, warnings: tuple[str, ...], servers: list[ServerState], sentence: str
) -> None:
    assert find_bottleneck([step(phases, *warnings)], servers).sentence == sentence


def test_the_queue_of_a_server_that_answers_nobody_here_explains_nothing() -> None:
    steps, other = [step(Phases(model=4.0))], msgspec.structs.replace(BUSY, endpoint="spare")
    assert find_bottleneck(steps, [other]).cause == "model"
    idle = msgspec.structs.replace(BUSY, waiting=0.0, decode_s=2.0)
    assert find_bottleneck(steps, [other, idle]).cause == "decode"
    gateway = ServerState(endpoint="lab", server="TensorZero")
    assert find_bottleneck(steps, [gateway, other]).cause == "queue"


def test_before_the_first_step_a_queue_or_a_failure_is_named() -> None:
    assert find_bottleneck([]).cause == "none"
    assert find_bottleneck([], [BUSY]).cause == "queue"
    assert find_bottleneck([step(None)], [msgspec.structs.replace(BUSY, waiting=0.0)]).cause == "none"
    down = find_bottleneck([step(Phases(env=9.0))], [BUSY], {"lab": "refused"}, is_down=True)
    assert (down.cause, down.sentence) == ("endpoint", "an endpoint fails: lab (refused); no other one answers")


def test_an_endpoint_that_rests_and_costs_no_time_is_no_cause() -> None:
    steps = [step(Phases(env=3.0, own=0.1), "gateway: refused; tried again in 9 s")]
    assert find_bottleneck(steps, [], {"gateway": "refused"}).cause == "environment"


def test_shares_are_those_of_the_steps_with_a_split() -> None:
    steps = [step(Phases(model=6.0, decode=5.0, env=3.0, own=1.0)), step(None), step(Phases())]
    shares = time_shares(steps)
    assert (shares.n, shares.total_s, shares.share("environment")) == (2, 10.0, 0.3)
    assert shares.text() == "decode 50%, environment 30%, other model time 10%, own 10%"
    assert time_shares([]).text() == ""

"""The cause that slows episodes down, by steps and the metrics of the model's server."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from runner.results.bottleneck import ServerState, find_bottleneck
from runner.types import Action, Phases, TimeStep
from runner.types.time_shares import Cause, time_shares
from tests.support.slow_servers import PARTS, SlowServer, Source

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

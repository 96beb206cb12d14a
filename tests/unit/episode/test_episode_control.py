"""Commands to a running episode: pause, step, resume and cancel."""

import asyncio
import threading

import pytest

from runner.episode.control import EpisodeControl
from runner.types import EpisodeEnded, EpisodeEvent, EpisodePaused, EpisodeResumed, Limits, Outcome, TimestepPlayed
from tests.support.fakes import AsyncHanging, Counter, SlowCleanup, UpAgent
from tests.support.runners import make_context, make_runner


async def test_cancellation_is_raised_after_cleanup_and_emitted() -> None:
    events: list[EpisodeEvent] = []
    task = asyncio.ensure_future(make_runner("AsyncHanging").play_episode(context=make_context(events)))
    await asyncio.to_thread(AsyncHanging.entered.acquire, timeout=10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Counter.closed == ["AsyncHanging"]
    assert isinstance(events[-1], EpisodeEnded)
    assert events[-1].trajectory.outcome is Outcome.CANCELLED


async def test_pause_step_and_resume_take_effect_between_steps() -> None:
    events: list[EpisodeEvent] = []
    control = EpisodeControl()
    control.pause()
    changed = asyncio.Event()

    def emit(event: EpisodeEvent) -> None:
        events.append(event)
        changed.set()

    async def wait_for(kind: type[EpisodeEvent], count: int) -> None:
        while sum(isinstance(event, kind) for event in events) < count:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 10)

    task = asyncio.ensure_future(
        make_runner("Counter", limits=Limits(max_duration_s=5)).play_episode(
            context=make_context(control=control, emit=emit)
        )
    )
    await wait_for(EpisodePaused, 1)
    assert not any(isinstance(event, TimestepPlayed) for event in events)
    control.step()
    await wait_for(EpisodePaused, 2)
    assert sum(isinstance(event, TimestepPlayed) for event in events) == 1
    control.resume()
    trajectory = await asyncio.wait_for(task, 10)
    assert trajectory.outcome is Outcome.SUCCESS
    assert trajectory.paused_s > 0
    assert sum(isinstance(event, EpisodeResumed) for event in events) == 2


async def test_paused_time_does_not_count_towards_the_time_limit() -> None:
    control = EpisodeControl()
    control.pause()
    runner = make_runner("Counter", limits=Limits(max_duration_s=0.2))
    task = asyncio.ensure_future(runner.play_episode(context=make_context(control=control)))
    await asyncio.wait({task}, timeout=0.4)  # longer than the time limit
    assert not task.done()
    control.resume()
    assert (await asyncio.wait_for(task, 10)).outcome is Outcome.SUCCESS


async def test_cancel_ends_a_paused_episode() -> None:
    control = EpisodeControl()
    control.pause()
    task = asyncio.ensure_future(make_runner("Counter").play_episode(context=make_context(control=control)))
    await asyncio.sleep(0)
    control.cancel()
    assert (await asyncio.wait_for(task, 10)).outcome is Outcome.CANCELLED


async def test_a_cancellation_during_cleanup_is_raised_afterwards() -> None:
    SlowCleanup.entered.clear()
    SlowCleanup.gate.clear()
    events: list[EpisodeEvent] = []
    task = asyncio.ensure_future(make_runner("SlowCleanup").play_episode(context=make_context(events)))
    assert await asyncio.to_thread(SlowCleanup.entered.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    SlowCleanup.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Counter.closed == ["SlowCleanup"]
    assert UpAgent.closed == ["UpAgent"]
    assert isinstance(events[-1], EpisodeEnded)
    assert events[-1].trajectory.outcome is Outcome.SUCCESS


async def test_a_pause_requested_at_the_end_of_a_step_takes_effect() -> None:
    control = EpisodeControl()
    calls: list[str] = []
    with control._lock:  # blocks the command until the lock is released
        command = threading.Thread(target=control.pause)
        command.start()
    command.join(10)
    waiting = asyncio.ensure_future(control.wait_at_step(lambda: calls.append("wait"), lambda: calls.append("resume")))
    await asyncio.sleep(0)
    assert calls == ["wait"]
    control.resume()
    assert await asyncio.wait_for(waiting, 10)
    assert calls == ["wait", "resume"]
    assert await control.wait_at_step(lambda: calls.append("wait"), lambda: calls.append("resume"))
    assert calls == ["wait", "resume"]

"""The page of the field runner: its profile, its reference table, and the fields of its events."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config import NatsSettings, Profile, load_profile
from runner.config.profile import Hardware
from runner.events import subjects
from runner.events.durable import DURABLE_TYPES


@pytest.fixture(scope="module")
def profile() -> Profile:
    """The profile of a run without ``--config``."""
    return load_profile(None, environ={}, cwd=Path("/"))


def test_the_limits_and_models_are_those_of_the_page(profile: Profile) -> None:
    assert profile.id == "field-runner-4090"
    assert profile.episode.max_duration_sec == 300
    assert (profile.episode.max_rounds, profile.episode.concurrent) == (15, 1)
    assert (profile.agent.model, profile.agent.local_fallback) == ("qwen35_9b", "qwen3:8b")
    assert profile.agent.api_endpoint == "http://localhost:3030/v1/chat/completions"
    assert profile.hardware == Hardware(gpu="RTX 4090 Laptop", vram_gb=16, ram_gb=64)
    assert profile.metrics == ("score", "success_rate", "avg_rounds", "completion_time_sec", "token_count")
    assert (profile.agent.mode, profile.nats, profile.tracing) == ("api", NatsSettings(), "full")


def test_the_environments_are_those_of_the_reference_table(profile: Profile) -> None:
    listed = {
        (entry.name, tier, entry.port, entry.external)
        for tier in ("lightweight", "moderate")
        for entry in profile.tier(tier)
    }
    assert listed == {
        ("BabyAI", "lightweight", 36001, None),
        ("TextCraft", "lightweight", 36002, None),
        ("Maze", "lightweight", 36003, None),
        ("Wordle", "lightweight", 36004, None),
        ("ALFWorld", "moderate", 36005, "ALFWorld data"),
        ("SQLGym", "moderate", 36006, "SQLite"),
        ("WebShop", "moderate", 36007, "Web scraper"),
    }
    assert all(f"--port {entry.port}" in (entry.server_cmd or "") for _, entry in profile.tiered_entries())
    assert all(entry.ram for tier in ("lightweight", "moderate") for entry in profile.tier(tier))
    skipped = {entry.name: entry.reason for entry in profile.environments.skip}
    assert skipped.keys() == {"WebArena", "SciWorld"}
    assert ("browser" in skipped["WebArena"], "Java" in skipped["SciWorld"]) == (True, True)


def test_the_events_have_the_subjects_and_fields_of_the_page(profile: Profile) -> None:
    fields = {name: {*event.__struct_fields__} for name, event in DURABLE_TYPES.items()}
    assert fields[subjects.EPISODE_COMPLETED] >= {"episode_id", "env", "reward", "rounds", "duration_s"}
    assert fields[subjects.BATCH_COMPLETED] >= {"batch_id", "env", "n_episodes", "mean_reward"}
    assert fields[subjects.FIELD_STATUS] >= {"node", "config", "status"}
    nats = profile.nats
    assert nats.episode_completed == subjects.EPISODE_COMPLETED == "agentgym.episode.completed.v1"
    assert nats.eval_batch == subjects.BATCH_COMPLETED == "agentgym.eval.batch.completed.v1"
    assert nats.field_status == subjects.FIELD_STATUS == "agentgym.field.status.v1"

"""Profiles: the environments, limits and models of a node, and the location of its state directory."""

from runner.config.load import load_profile, resolve_data_dir, resolve_node, resolve_path
from runner.config.profile import (
    AgentSettings,
    EndpointConfig,
    EnvironmentEntry,
    Environments,
    EpisodeSettings,
    EventsStream,
    Hardware,
    LiveStream,
    NatsSettings,
    Price,
    Profile,
    RateLimit,
    RaySettings,
    SkipEntry,
    StreamSettings,
    Tier,
)

__all__ = [
    "AgentSettings",
    "EndpointConfig",
    "EnvironmentEntry",
    "Environments",
    "EpisodeSettings",
    "EventsStream",
    "Hardware",
    "LiveStream",
    "NatsSettings",
    "Price",
    "Profile",
    "RateLimit",
    "RaySettings",
    "SkipEntry",
    "StreamSettings",
    "Tier",
    "load_profile",
    "resolve_data_dir",
    "resolve_node",
    "resolve_path",
]

"""The shape of a profile; ``docs/profiles.md`` explains every key to its user."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runner.types import SpanLevel

NODE_PATTERN = r"\A[A-Za-z0-9_-]{1,64}\Z"
NODE_EXPECTED = "a name of 1 to 64 letters, digits, _ and -"

Tier: TypeAlias = Literal["lightweight", "moderate"]
Text: TypeAlias = Annotated[str, Meta(min_length=1, description="a text that is not empty")]
ShortText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, description="a text of 1 to 200 characters")]
Count: TypeAlias = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Amount: TypeAlias = Annotated[float, Meta(ge=0, description="a number of at least 0")]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]
Seconds: TypeAlias = Annotated[  # beyond the upper bound the operating system's own timers overflow
    float, Meta(gt=0, le=1_000_000_000, description="a number of seconds above 0 and at most 1000000000")
]
RetentionSeconds: TypeAlias = Annotated[  # the server refuses less than a tenth of a second
    float, Meta(ge=1, le=1_000_000_000, description="a number of seconds from 1 to 1000000000")
]
DiskBytes: TypeAlias = Annotated[
    int, Meta(ge=1 << 20, le=4 << 30, description="a whole number of bytes from 1048576 (1 MiB) to 4294967296 (4 GiB)")
]
MemoryBytes: TypeAlias = Annotated[
    int,
    Meta(ge=1 << 20, le=512 << 20, description="a whole number of bytes from 1048576 (1 MiB) to 536870912 (512 MiB)"),
]
NodeName: TypeAlias = Annotated[str, Meta(pattern=NODE_PATTERN, description=NODE_EXPECTED)]
VariableName: TypeAlias = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of an environment variable, not its value")
]
Subject: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"\A[^\s.*>]+(?:\.[^\s.*>]+)*\Z",
        description="a NATS subject: words joined by dots, without spaces, * and >",
    ),
]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that it does not know is an error."""


class Hardware(_Section, frozen=True):
    """The machine; ``vram_gb`` and ``ram_gb`` in GB, 0 where unknown. ``node`` None: the host name."""

    gpu: str = ""
    vram_gb: Amount = 0.0
    ram_gb: Amount = 0.0
    node: NodeName | None = None


class EpisodeSettings(_Section, frozen=True):
    """Hard limits of one episode, and how many are played at the same time."""

    max_duration_sec: Seconds = 300.0
    max_rounds: Count = 15
    concurrent: Count = 1


class EndpointConfig(_Section, frozen=True):
    """A further model endpoint; ``api_key_env`` names the variable that holds its key."""

    url: Text
    name: Text | None = None
    model: Text | None = None
    kind: Literal["auto", "tensorzero", "ollama", "openai"] = "auto"
    api_key_env: VariableName | None = None


class Price(_Section, frozen=True):
    """What a model costs per million tokens; None: reasoning as completion, cached as prompt."""

    prompt_per_mtok: Amount = 0.0
    completion_per_mtok: Amount = 0.0
    reasoning_per_mtok: Amount | None = None
    cached_per_mtok: Amount | None = None


class FeedbackMetrics(_Section, frozen=True):
    """The names of TensorZero's metrics that get an episode's reward (a float) and its success (a boolean)."""

    reward: ShortText | None = None
    success: ShortText | None = None


class AgentSettings(_Section, frozen=True):
    """The model that plays, where it answers, and what answers when it does not.

    Attributes:
        timeout_sec: how long one answer may take, retries not counted.
        context_tokens: what a conversation is trimmed to before it is sent; about 4 characters each.
        max_unparsed: replies in a row that are no action, after which the episode has failed.
        feedback: None: nothing is sent back to TensorZero.
    """

    mode: Literal["api", "local"] = "api"
    api_endpoint: Text = "http://localhost:3030/v1/chat/completions"
    model: Text = "qwen35_9b"
    local_fallback: Text | None = "qwen3:8b"
    format: Literal["auto", "react", "tools"] = "auto"
    endpoints: tuple[EndpointConfig, ...] = ()
    price: dict[str, Price] = {}
    temperature: Amount | None = None
    max_tokens: Count | None = None
    timeout_sec: Seconds = 60.0
    stream: bool = True
    context_tokens: Annotated[int, Meta(ge=1000, description="a whole number of at least 1000")] = 16_384
    max_unparsed: Count = 3
    feedback: FeedbackMetrics | None = None


class EnvironmentEntry(_Section, frozen=True):
    """One environment to play.

    Attributes:
        server_cmd: the command of its server; without one, and without ``base_url``, it is played embedded.
        ram: memory its server takes, for display, e.g. ``110 MiB``.
        deps: Python distributions it needs beyond the runner's own.
        base_url: a server elsewhere, in place of ``port``.
        timeout_sec: how long one request to its server may take.
        autostart: whether a node starts ``server_cmd`` by itself.
    """

    name: Text
    server_cmd: Text | None = None
    port: Port | None = None
    ram: str | None = None
    deps: tuple[Text, ...] = ()
    transport: Literal["http", "embedded", "auto"] = "auto"
    base_url: Text | None = None
    timeout_sec: Seconds = 30.0
    autostart: bool = False


class SkipEntry(_Section, frozen=True):
    """An environment that is not played here, and why."""

    name: Text
    reason: str = "no reason given"


class Environments(_Section, frozen=True):
    """The environments by tier."""

    lightweight: tuple[EnvironmentEntry, ...] = ()
    moderate: tuple[EnvironmentEntry, ...] = ()
    skip: tuple[SkipEntry, ...] = ()


class EventsStream(_Section, frozen=True):
    """How long, and up to which size, the node's own broker keeps durable events; full, it takes no more."""

    max_age_sec: RetentionSeconds = 30 * 86400.0
    max_bytes: DiskBytes = 1 << 30
    duplicate_window_sec: RetentionSeconds = 600.0


class LiveStream(_Section, frozen=True):
    """How long, and up to which size, the node's own broker keeps live items; full, it drops the oldest."""

    max_age_sec: RetentionSeconds = 3600.0
    max_bytes: MemoryBytes = 256 << 20


class StreamSettings(_Section, frozen=True):
    """The streams of the node's own broker."""

    events: EventsStream = EventsStream()
    live: LiveStream = LiveStream()


class NatsSettings(_Section, frozen=True):
    """Subjects of the durable events, what the own broker keeps, and another broker that gets them too."""

    episode_completed: Subject = "agentgym.episode.completed.v1"
    eval_batch: Subject = "agentgym.eval.batch.completed.v1"
    field_status: Subject = "agentgym.field.status.v1"
    streams: StreamSettings = StreamSettings()
    url: Text | None = None
    control: bool = False
    monitor_url: Text | None = None


class Profile(_Section, frozen=True):
    """A loaded profile; only ``id`` has no default."""

    id: ShortText
    hardware: Hardware = Hardware()
    episode: EpisodeSettings = EpisodeSettings()
    agent: AgentSettings = AgentSettings()
    environments: Environments = Environments()
    nats: NatsSettings = NatsSettings()
    metrics: tuple[Text, ...] = ("score", "success_rate", "avg_rounds", "completion_time_sec", "token_count")
    data_dir: Text | None = None
    tracing: SpanLevel = "full"

    def tier(self, name: Tier) -> tuple[EnvironmentEntry, ...]:
        """The environments of a tier, in the order of the file."""
        return self.environments.lightweight if name == "lightweight" else self.environments.moderate

    def listed(self) -> list[tuple[Tier, EnvironmentEntry]]:
        """Every environment that is not skipped, with its tier."""
        tiers: tuple[Tier, ...] = ("lightweight", "moderate")
        return [(tier, entry) for tier in tiers for entry in self.tier(tier)]

    def find(self, name: str) -> EnvironmentEntry | SkipEntry | None:
        """The environment of that name in any case, or None."""
        environments = self.environments
        entries: tuple[EnvironmentEntry | SkipEntry, ...] = (
            *environments.lightweight,
            *environments.moderate,
            *environments.skip,
        )
        return next((entry for entry in entries if entry.name.casefold() == name.casefold()), None)

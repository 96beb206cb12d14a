"""Schema of a profile; ``docs/run/profiles.md`` documents every key for users."""

# Annotations are no text here: each command would compile and evaluate them again to check the profile.

from collections.abc import Mapping
from itertools import count
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from runner.types import MAX_DURATION_S, MAX_ROUNDS, MAX_WORKERS, SpanLevel
from runner.util.display_text import MASK, mask, one_line

NODE_PATTERN = r"\A[A-Za-z0-9_-]{1,64}\Z"
NODE_EXPECTED = "a name of 1 to 64 letters, digits, _ and -"
AGE_PATTERN = r"\A[0-9]{1,6}[smhdw]\Z"
AGE_EXPECTED = "an age such as 12h, 30d or 8w"
VARIABLE_NAME_PATTERN = r"\A[A-Za-z_][A-Za-z0-9_]*\Z"
_SUBJECT_PATTERN = r"\A[^\s.*>]+(?:\.[^\s.*>]+)*\Z"
_RAY_PATTERN = r"\A(?:|auto|[^\s/@:]+:[0-9]{1,5}|\[[^\s/@]+\]:[0-9]{1,5})\Z"
_HOST_PATTERN = r"\A[A-Za-z0-9_.:-]{1,253}\Z"
PATTERNS: Final = {
    NODE_PATTERN: NODE_EXPECTED,
    AGE_PATTERN: AGE_EXPECTED,
    VARIABLE_NAME_PATTERN: "the name of an environment variable, not its value",
    _SUBJECT_PATTERN: "a NATS subject: tokens separated by dots, without spaces, * and >",
    _RAY_PATTERN: "HOST:PORT, auto, or an empty text",
    _HOST_PATTERN: "the name or IP address of a host, without a port",
}
"""What users read in place of each pattern."""

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
ShortText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Rounds: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_ROUNDS)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Workers: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_WORKERS)] | Literal["ray"]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=MAX_DURATION_S)]  # above it, timers of the system overflow
WaitSeconds: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000_000)]
RetentionSeconds: TypeAlias = Annotated[float, Meta(ge=1, le=1_000_000_000)]  # NATS rejects retention below 0.1 s
Age: TypeAlias = Annotated[str, Meta(pattern=AGE_PATTERN)]
DiskBytes: TypeAlias = Annotated[int, Meta(ge=1 << 20, le=4 << 30)]
MemoryBytes: TypeAlias = Annotated[int, Meta(ge=1 << 20, le=512 << 20)]
NodeName: TypeAlias = Annotated[str, Meta(pattern=NODE_PATTERN)]
VariableName: TypeAlias = Annotated[str, Meta(pattern=VARIABLE_NAME_PATTERN)]
Subject: TypeAlias = Annotated[str, Meta(pattern=_SUBJECT_PATTERN)]
RayAddress: TypeAlias = Annotated[str, Meta(pattern=_RAY_PATTERN)]
HostName: TypeAlias = Annotated[str, Meta(pattern=_HOST_PATTERN)]

GATEWAY, FALLBACK = "gateway", "ollama"
"""Names of the two endpoints whose names a profile does not set."""

Tier: TypeAlias = Literal["lightweight", "moderate"]
LiveTokens: TypeAlias = Literal["watched", "always", "never"]
OptionalField: TypeAlias = Literal["temperature", "max_tokens", "stream_options", "token_ids"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_STREAMING: Final = {
    (True, True): "",
    (True, False): "no streaming without tools",
    (False, True): "no streaming with tools",
    (False, False): "no streaming",
}
"""What is not streamed, by whether answers are streamed with and without tools."""


class LessonKey(NamedTuple):
    """What capabilities hold for: an endpoint, a model, and requests with or without tools."""

    endpoint: str
    model: str
    with_tools: bool


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The shape of the requests that an endpoint takes for one model, with or without tools.

    Attributes:
        rename: other names under which the endpoint takes fields, such as ``max_completion_tokens``.
        tools: ``text``: tools are described in the prompt and not sent, and calls are read from the answer's text.
        system: ``folded``: the system prompt is the beginning of the first user message.
        reasoning: turns whose reasoning is sent back to the model that wrote it: none, those with tool calls, or all.
        context_tokens: size of the context; None if only the profile's ``agent.context_tokens`` is known.
    """

    omit: tuple[OptionalField, ...] = ()
    rename: dict[OptionalField, str] = {}
    tools: Literal["native", "text"] = "native"
    stream: bool = True
    system: Literal["own", "folded"] = "own"
    reasoning: Literal["none", "calls", "all"] = "calls"
    context_tokens: Annotated[int, msgspec.Meta(ge=16)] | None = None

    def describe(self, without_tools: Self | None = None) -> str:
        """Return what differs from the usual shape in a few words; "" if nothing does.

        With the capabilities ``without_tools`` of the same endpoint, the words also show where it streams.
        """
        parts = [
            "tools as text" if self.tools == "text" else "",
            _STREAMING[self.stream, (without_tools or self).stream],
            "folded system" if self.system == "folded" else "",
            *(f"{name} as {new}" for name, new in self.rename.items()),
            *(f"no {name}" for name in self.omit),
            "" if self.reasoning == "calls" else f"reasoning of {self.reasoning} turns sent back",
            f"context {self.context_tokens:,}" if self.context_tokens else "",
        ]
        return ", ".join(filter(None, parts))


def age_seconds(age: str) -> float:
    return float(int(age[:-1]) * _UNITS[age[-1]])


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all sections of a profile; an unknown key is an error."""

    def __repr__(self) -> str:
        """Without what ``__rich_repr__`` of a section hides, since it may appear in tracebacks and logs."""
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.__rich_repr__())})"


class RetentionSettings(_Section, frozen=True):
    """What an idle node does with old episodes, or with the oldest above ``max_bytes`` of files; by default nothing."""

    older: Age | None = None
    max_bytes: Count | None = None
    keep: Literal["tagged", "none"] = "tagged"
    archive: bool = True


class Hardware(_Section, frozen=True):
    """The node's machine; ``node`` is its name, None for the host name."""

    gpu: str = ""
    vram_gb: Amount = 0.0
    ram_gb: Amount = 0.0
    node: NodeName | None = None


class EpisodeSettings(_Section, frozen=True):
    """``workers``: None: this process for one episode at a time, else local processes.

    ``world``: None: agents with a model have pictures of an embedded environment.
    """

    max_duration_sec: Seconds = 300.0
    max_rounds: Rounds = 15
    concurrent: Count = 1
    workers: Workers | None = None
    wait_sec: WaitSeconds = 60.0
    world: bool | None = None


class EndpointConfig(_Section, frozen=True):
    """An additional model endpoint; ``capabilities``: None for the usual requests, until a refusal teaches others."""

    url: Text
    name: Text | None = None
    model: Text | None = None
    kind: Literal["auto", "tensorzero", "ollama", "openai"] = "auto"
    api_key_env: VariableName | None = None
    token_ids: bool = False
    capabilities: Capabilities | None = None


class Price(_Section, frozen=True):
    """Prices per million tokens; None: reasoning tokens cost as completion tokens, cached tokens as prompt tokens."""

    prompt_per_mtok: Amount = 0.0
    completion_per_mtok: Amount = 0.0
    reasoning_per_mtok: Amount | None = None
    cached_per_mtok: Amount | None = None


class RateLimit(_Section, frozen=True):
    requests_per_minute: Count | None = None
    concurrent_requests: Count | None = None


class FeedbackMetrics(_Section, frozen=True):
    """Names of the TensorZero metrics for an episode's reward (a float) and success (a boolean)."""

    reward: ShortText | None = None
    success: ShortText | None = None


class AgentSettings(_Section, frozen=True):
    """The agent's model, the endpoint that serves it, and the fallback endpoints.

    Attributes:
        timeout_sec: time limit of a whole answer, retries excluded; None: only that of the episode.
        local_fallback: model of Ollama that answers if no endpoint does; None, or empty in the profile, for none.
    """

    mode: Literal["api", "local"] = "api"
    api_endpoint: Text = "http://localhost:3030/v1/chat/completions"
    model: Text = "qwen35_9b"
    local_fallback: str | None = "qwen3:8b"
    format: Literal["auto", "react", "tools"] = "auto"
    endpoints: tuple[EndpointConfig, ...] = ()
    price: dict[str, Price] = {}
    currency: ShortText = "USD"
    temperature: Amount | None = None
    max_tokens: Count | None = None
    timeout_sec: Seconds | None = None
    idle_timeout_sec: Seconds = 60.0
    first_token_timeout_sec: Seconds = 180.0
    stream: bool = True
    context_tokens: Annotated[int, msgspec.Meta(ge=1000)] = 16_384
    max_unparsed: Count = 3
    feedback: FeedbackMetrics | None = None
    rate_limits: dict[str, RateLimit] = {}

    def __post_init__(self) -> None:
        if self.local_fallback == "":
            msgspec.structs.force_setattr(self, "local_fallback", None)

    @property
    def endpoint_names(self) -> tuple[str, ...]:
        """Unique names of the endpoints in their order: the gateway, the additional endpoints, Ollama."""
        names = [
            *([GATEWAY] if self.mode == "api" else []),
            *(entry.name or _host(entry.url) or "endpoint" for entry in self.endpoints),
            *([] if self.local_fallback is None else [FALLBACK]),
        ]
        unique: list[str] = []
        for name in (one_line(name, 80) for name in names):
            numbered = (f"{name}-{number}" if number > 1 else name for number in count(1))
            unique.append(next(each for each in numbered if each not in unique))
        return tuple(unique)

    @property
    def key_names(self) -> frozenset[str]:
        return frozenset(entry.api_key_env for entry in self.endpoints if entry.api_key_env)


class EnvironmentEntry(_Section, frozen=True):
    """An environment that the node runs, embedded without ``server_cmd`` and ``base_url``.

    None in a limit or in ``wait_sec`` means the value of ``episode``, and in ``places`` the server's own limit. The
    values of ``env`` may be secret.
    """

    name: Text
    server_cmd: Text | None = None
    cwd: Text | None = None
    env: dict[str, str] = {}
    port: Port | None = None
    ram: str | None = None
    deps: tuple[Text, ...] = ()
    external: str | None = None
    transport: Literal["http", "embedded", "auto"] = "auto"
    base_url: Text | None = None
    timeout_sec: Seconds = 30.0
    wait_sec: WaitSeconds | None = None
    max_rounds: Rounds | None = None
    max_duration_sec: Seconds | None = None
    places: Count | None = None
    autostart: bool = False

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = {key: getattr(self, key) for key in self.__struct_fields__}
        shown = {key: mask(value) if isinstance(value, str) else value for key, value in values.items()}
        return [*(shown | {"env": dict.fromkeys(self.env, MASK)}).items()]


class SkipEntry(_Section, frozen=True):
    name: Text
    reason: str = "no reason given"


class Environments(_Section, frozen=True):
    lightweight: tuple[EnvironmentEntry, ...] = ()
    moderate: tuple[EnvironmentEntry, ...] = ()
    skip: tuple[SkipEntry, ...] = ()


class EventsStream(_Section, frozen=True):
    """Retention of durable events in the node's own broker; a full stream rejects new messages."""

    max_age_sec: RetentionSeconds = 30 * 86400.0
    max_bytes: DiskBytes = 1 << 30
    duplicate_window_sec: RetentionSeconds = 600.0


class LiveStream(_Section, frozen=True):
    """Retention of live items in the node's own broker; a full stream drops the oldest messages."""

    max_age_sec: RetentionSeconds = 3600.0
    max_bytes: MemoryBytes = 32 << 20


class StreamSettings(_Section, frozen=True):
    events: EventsStream = EventsStream()
    live: LiveStream = LiveStream()


class NatsSettings(_Section, frozen=True):
    """Subjects of the durable events, streams of the own broker, and an external broker that also gets the events."""

    episode_completed: Subject = "agentgym.episode.completed.v1"
    eval_batch: Subject = "agentgym.eval.batch.completed.v1"
    eval_battery: Subject = "agentgym.eval.battery.completed.v1"
    field_status: Subject = "agentgym.field.status.v1"
    streams: StreamSettings = StreamSettings()
    url: Text | None = None
    control: bool = False
    live_tokens: LiveTokens = "watched"
    monitor_url: Text | None = None
    monitor_port: Port | None = None

    def egress_url(self, environ: Mapping[str, str]) -> str | None:
        return environ.get("NATS_URL") or self.url


class RaySettings(_Section, frozen=True):
    """The Ray cluster that plays episodes with ``--workers ray``.

    Attributes:
        address: empty: a cluster of this machine is started for the run.
        max_workers: None: as many as episodes at a time.
        addresses: hosts of models and servers as the workers reach them, by the host in the profile.
    """

    address: RayAddress = ""
    num_cpus: Amount = 1.0
    resources: dict[str, Amount] = {}
    max_workers: Count | None = None
    placement: Literal["spread", "pack"] = "spread"
    runtime_env: dict[str, Any] = {}
    addresses: dict[str, HostName] = {}


class ARESettings(_Section, frozen=True):
    """The worker process that runs ARE, for environments named ``are:<scenario>``.

    Attributes:
        python: interpreter of the virtual environment with ARE; None for the interpreter of this process.
        memory_mib: memory of an episode in addition to that of the loaded package.
        judge_model: None: a judge that needs a model does not rate.
    """

    python: Text | None = None
    memory_mib: Annotated[int, msgspec.Meta(ge=64, le=1 << 20)] = 1024
    step_timeout_sec: Seconds = 60.0
    start_timeout_sec: Seconds = 180.0
    judge_model: Text | None = None
    judge_timeout_sec: Seconds = 300.0


class NotifySettings(_Section, frozen=True):
    """A command and a webhook that receive the end of each batch as JSON: on standard input and as a POST request."""

    command: tuple[Text, ...] = ()
    pass_env: tuple[VariableName, ...] = ()
    url: Text | None = None
    token_env: VariableName | None = None
    timeout_sec: Seconds = 30.0

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        hidden = {"command": self.command[:1], "url": MASK if self.url else None}
        return [*hidden.items(), ("timeout_sec", self.timeout_sec)]


class Profile(_Section, frozen=True):
    """A loaded profile; only ``id`` has no default."""

    id: ShortText
    hardware: Hardware = Hardware()
    episode: EpisodeSettings = EpisodeSettings()
    agent: AgentSettings = AgentSettings()
    environments: Environments = Environments()
    nats: NatsSettings = NatsSettings()
    ray: RaySettings = RaySettings()
    are: ARESettings = ARESettings()
    notify: NotifySettings = NotifySettings()
    retention: RetentionSettings = RetentionSettings()
    metrics: tuple[Text, ...] = ("score", "success_rate", "avg_rounds", "completion_time_sec", "token_count")
    data_dir: Text | None = None
    tracing: SpanLevel = "full"

    def tier(self, name: Tier) -> tuple[EnvironmentEntry, ...]:
        return self.environments.lightweight if name == "lightweight" else self.environments.moderate

    def tiered_entries(self) -> list[tuple[Tier, EnvironmentEntry]]:
        tiers: tuple[Tier, ...] = ("lightweight", "moderate")
        return [(tier, entry) for tier in tiers for entry in self.tier(tier)]

    def find_entry(self, name: str) -> EnvironmentEntry | SkipEntry | None:
        """Ignores case."""
        envs = self.environments
        entries: tuple[EnvironmentEntry | SkipEntry, ...] = (*envs.lightweight, *envs.moderate, *envs.skip)
        return next((entry for entry in entries if entry.name.casefold() == name.casefold()), None)

    def episode_settings(self, name: str) -> EpisodeSettings:
        """Return ``episode`` with the limits and the wait for a lost server that an environment has of its own."""
        entry = self.find_entry(name)
        if not isinstance(entry, EnvironmentEntry):
            return self.episode
        own = {key: getattr(entry, key) for key in ("max_rounds", "max_duration_sec", "wait_sec")}
        known = {key: value for key, value in own.items() if value is not None}
        return msgspec.structs.replace(self.episode, **known)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # the URL is not valid, which is reported as such
        return None

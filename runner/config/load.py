"""Reads profiles: finds the file, validates it, and resolves the settings that follow from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.inspect import DictType, ListType, LiteralType, StructType, Type, UnionType, VarTupleType, type_info

from runner.config.document import YamlValue, expand_data, parse_yaml
from runner.config.profile import (
    FALLBACK,
    GATEWAY,
    NODE_EXPECTED,
    NODE_PATTERN,
    PATTERNS,
    VARIABLE_NAME_PATTERN,
    EnvironmentEntry,
    Profile,
    SkipEntry,
)
from runner.errors import ConfigError
from runner.util.argument_parser import suggestion
from runner.util.display_text import mask, one_line
from runner.util.files import DataDir, default_data_dir, package_resource, read_regular, resolve_path

DEFAULT_PROFILE = "field-runner-4090"
MAX_PROFILE_BYTES = 1 << 20
SUFFIXES = (".yaml", ".yml")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE_NAME = re.compile(VARIABLE_NAME_PATTERN)
_DEFAULT_ENDPOINT_KEYS = ("mode", "api_endpoint", "local_fallback")
"""Keys of ``agent`` about the gateway and Ollama, which are used by default."""
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)

_Entries: TypeAlias = list[tuple[str, EnvironmentEntry | SkipEntry]]
"""Entries of ``environments`` with their key paths."""


class ProfileFile(NamedTuple):
    path: Path
    content: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def digest(self) -> str:
        return sha256(self.content).hexdigest()


def load_profile(
    name_or_path: str | None, *, environ: Mapping[str, str], cwd: Path, user_config: Path | None = None
) -> Profile:
    return read_profile(name_or_path, environ=environ, cwd=cwd, user_config=user_config)[0]


def read_profile(
    name_or_path: str | None, *, environ: Mapping[str, str], cwd: Path, user_config: Path | None = None
) -> tuple[Profile, ProfileFile]:
    """Load a profile; return it with its file.

    Args:
        name_or_path: a path if it contains a slash or ends in .yaml or .yml; otherwise a name, searched in
            ``./configs``, in the user's folder and in the shipped profiles. None is the default profile.
        cwd: base of relative paths and of ``./configs``.
        user_config: the user's folder of profiles, by default ``user_config_dir(environ)``.

    Raises:
        ConfigError: the profile is missing, unreadable or invalid; the message has the file, the key path of the
            first invalid value, and what is expected there, but no value that may be secret.
    """
    file = _find_profile(name_or_path or DEFAULT_PROFILE, cwd, user_config or user_config_dir(environ))
    content, data = _read_data(file, environ)
    return convert_profile(data, str(file), environ), ProfileFile(cwd.absolute() / file, content)


def convert_profile(data: YamlValue, source: str, environ: Mapping[str, str]) -> Profile:
    """Return the profile with these data; the ``ConfigError`` of invalid data begins with ``source``."""
    try:
        profile = _convert(data, environ)
        for problem in _violations(profile):
            raise ConfigError(problem)
    except ConfigError as exc:
        raise ConfigError(f"{source}: {one_line(mask(str(exc), environ))}") from None
    return profile


def _convert(data: YamlValue, environ: Mapping[str, str]) -> Profile:
    texts = set[str]()
    while True:
        expanded = expand_data(data, environ, texts)
        try:
            return _with_own_endpoints(msgspec.convert(expanded, Profile), expanded)
        except msgspec.ValidationError as exc:
            problem, _, path = str(exc).partition(" - at `$")
            path = path.removesuffix("`")
            if path in texts:
                raise ConfigError(_explain(problem, path)) from None
            texts.add(path)  # perhaps a text was expected there


def _choices(path: str) -> str:
    found = [*_alternatives(type_info(Profile))]
    for step in re.findall(r"\.\w+|\[.*?\]", path):
        found = [each for node in found for child in _children(node, step) for each in _alternatives(child)]
    values = [str(value) for each in found if isinstance(each, LiteralType) for value in each.values]
    return f"; known: {', '.join(values)}" if values else ""


def _alternatives(node: Type) -> Iterator[Type]:
    yield from node.types if isinstance(node, UnionType) else (node,)


def _children(node: Type, step: str) -> Iterator[Type]:
    match node:
        case StructType():
            yield from (field.type for field in node.fields if f".{field.encode_name}" == step)
        case DictType():
            yield node.value_type
        case ListType() | VarTupleType():
            yield node.item_type


def _explain(problem: str, path: str) -> str:
    if (unknown := _UNKNOWN.fullmatch(problem)) is not None:
        path = f"{path}.{unknown[1]}"
        problem = "unknown key" + (suggestion(unknown[1], Profile.__struct_fields__) if path.count(".") == 1 else "")
    if problem.startswith("Invalid enum value"):  # msgspec quotes it, and it may be a key in a wrong place
        problem = f"unknown value{_choices(path)}"
    for pattern, expected in PATTERNS.items():
        problem = problem.replace(f"`str` matching regex {pattern!r}", expected)
    return f"{path.removeprefix('.') or 'top level'}: {problem} (docs/run/profiles.md describes all keys)"


def _find_profile(name_or_path: str, cwd: Path, user_config: Path | None) -> Path:
    if "/" in name_or_path or name_or_path.endswith(SUFFIXES):
        path = cwd / name_or_path
        with suppress(OSError):  # unknown: opening the file reports the error
            if not path.exists():
                raise ConfigError(f"There is no profile {path}. {_suggest_profile(path.stem, cwd, user_config)}")
        return path
    if not _NAME.fullmatch(name_or_path):
        raise ConfigError(
            f"'{one_line(name_or_path)}' is not a valid profile name: use up to 100 letters, digits, ., _ and -"
        )
    for folder in _profile_dirs(cwd, user_config):
        for suffix in SUFFIXES:
            with suppress(OSError):  # e.g. no permission to search the folder
                if (file := folder.joinpath(name_or_path + suffix)).is_file():
                    return file
    searched = ", ".join(map(str, _profile_dirs(cwd, user_config)))
    raise ConfigError(
        f"There is no profile named {name_or_path} in {searched}. {_suggest_profile(name_or_path, cwd, user_config)}"
    )


def _profile_dirs(cwd: Path, user_config: Path | None) -> Iterator[Path]:
    yield cwd / "configs"
    if user_config is not None:
        yield user_config
    yield package_resource("configs")


def _suggest_profile(name: str, cwd: Path, user_config: Path | None) -> str:
    names = profile_names(cwd, user_config)
    close = get_close_matches(name, names)
    return f"Did you mean {' or '.join(close)}?" if close else f"Available: {', '.join(names) or 'none'}."


def profile_names(cwd: Path, user_config: Path | None) -> list[str]:
    names = set[str]()
    for folder in _profile_dirs(cwd, user_config):
        with suppress(OSError):  # missing or unreadable
            names.update(file.stem for file in folder.iterdir() if file.suffix in SUFFIXES)
    return sorted(names)


def _read_data(file: Path, environ: Mapping[str, str]) -> tuple[bytes, YamlValue]:
    try:
        content, text = _read(file)
        return content, parse_yaml(text)
    except ConfigError as exc:
        raise ConfigError(f"{file}: {one_line(mask(str(exc), environ))}") from exc


def _read(file: Path) -> tuple[bytes, str]:
    try:
        content, _ = read_regular(file, MAX_PROFILE_BYTES)
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}") from exc
    try:
        return content, content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc


def profile_digest(file: Path) -> str | None:
    """Return None if the file cannot be read."""
    try:
        return sha256(read_regular(file, MAX_PROFILE_BYTES)[0]).hexdigest()
    except OSError:
        return None


def user_config_dir(environ: Mapping[str, str]) -> Path | None:
    """Return ``agentgym-console/configs`` in ``$XDG_CONFIG_HOME`` or ``~/.config``; None if there is no home folder."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # XDG Base Directory Specification: relative paths are ignored
        home = environ.get("HOME")
        if not home:
            return None
        base = f"{home}/.config"
    return Path(base, "agentgym-console", "configs")


def find_data_dir(option: str | None, environ: Mapping[str, str], profile: Profile, cwd: Path) -> DataDir:
    """Return the state directory.

    The first non-empty value applies: ``--data-dir``, ``AGENTGYM_DATA_DIR``, the profile's ``data_dir``, the default.
    A leading ``~`` that no shell has expanded is the home folder.
    """
    if chosen := option or environ.get("AGENTGYM_DATA_DIR") or profile.data_dir:
        return DataDir(resolve_path(chosen, environ, cwd))
    return default_data_dir(environ, cwd)


def resolve_node(option: str | None, environ: Mapping[str, str], profile: Profile, hostname: str) -> str:
    """Return the node name: ``--node``, ``AGENTGYM_NODE``, the profile's ``hardware.node``, or the host name.

    Characters of the host name that are invalid in a node name become hyphens.

    Raises:
        ConfigError: the option or the variable is not a valid node name.
    """
    for source, name in (("--node", option), ("AGENTGYM_NODE", environ.get("AGENTGYM_NODE"))):
        if name:
            if not re.search(NODE_PATTERN, name):
                raise ConfigError(f"{source}: expected {NODE_EXPECTED}, got '{one_line(name)}'")
            return name
    return profile.hardware.node or re.sub(r"[^A-Za-z0-9_-]", "-", hostname)[:64] or "local"


def _violations(profile: Profile) -> Iterator[str]:
    tiers = msgspec.structs.asdict(profile.environments).items()
    entries: _Entries = [
        (f"environments.{tier}[{i}]", entry) for tier, listed in tiers for i, entry in enumerate(listed)
    ]
    yield from _duplicates(entries, "name")
    yield from _duplicates(entries, "port")
    for path, entry in entries:
        for name in entry.env if isinstance(entry, EnvironmentEntry) else ():
            if not _VARIABLE_NAME.fullmatch(name):
                yield f"{path}.env.{name}: expected a variable's name: letters, digits and _, no digit first"
    yield from _invalid_urls(profile, entries)
    yield from _inconsistencies(profile)


def _duplicates(entries: _Entries, key: str) -> Iterator[str]:
    first: dict[object, str] = {}
    for path, entry in entries:
        value = getattr(entry, key, None)
        given = value.casefold() if isinstance(value, str) else value
        if given is not None and (other := first.setdefault(given, path)) != path:
            same = f"{key} {value}" if key == "port" else key
            yield f"{path}.{key}: duplicate {same}; {other} has the same {key}"


def _invalid_urls(profile: Profile, entries: _Entries) -> Iterator[str]:
    urls = {
        "agent.api_endpoint": profile.agent.api_endpoint,
        **{f"agent.endpoints[{index}].url": endpoint.url for index, endpoint in enumerate(profile.agent.endpoints)},
        **{f"{path}.base_url": entry.base_url for path, entry in entries if isinstance(entry, EnvironmentEntry)},
        "nats.monitor_url": profile.nats.monitor_url,
        "notify.url": profile.notify.url,
    }
    for path, url in urls.items():
        if url is not None and not _is_url(url, ("http", "https")):
            yield f"{path}: expected an http:// or https:// URL"
    servers = profile.nats.url.split(",") if profile.nats.url else []
    if not all(_is_url(server.strip(), ("nats", "tls")) for server in servers):
        yield "nats.url: expected nats:// or tls:// URLs separated by commas"


def _inconsistencies(profile: Profile) -> Iterator[str]:
    events, agent, model = profile.nats.streams.events, profile.agent, profile.are.judge_model
    if events.duplicate_window_sec > events.max_age_sec:  # the NATS server rejects such a stream
        yield (
            f"nats.streams.events.duplicate_window_sec: expected at most max_age_sec, which is {events.max_age_sec:g}, "
            f"got {events.duplicate_window_sec:g}"
        )
    names = list(dict.fromkeys([GATEWAY, *agent.endpoint_names, FALLBACK]))
    for name in agent.rate_limits:
        if name not in names:
            yield f"agent.rate_limits.{name}: unknown endpoint; known endpoints: {', '.join(names)}"
    own_models = [*(entry.model for entry in agent.endpoints), agent.local_fallback or ""]
    if model is not None and agent.mode != "api" and None not in own_models and model not in own_models:
        yield f"are.judge_model: no endpoint serves it; known models: {', '.join(filter(None, own_models))}"


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    if re.search(r"\s", text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def _with_own_endpoints(profile: Profile, data: YamlValue) -> Profile:
    """Leave out the gateway and Ollama of a profile with ``endpoints`` that sets no key of theirs.

    Its default model is the model of its first endpoint.
    """
    keys, agent = data.get("agent") if isinstance(data, dict) else None, profile.agent
    if not isinstance(keys, dict) or not agent.endpoints or not keys.keys().isdisjoint(_DEFAULT_ENDPOINT_KEYS):
        return profile
    model = agent.model if "model" in keys else agent.endpoints[0].model or agent.model
    agent = msgspec.structs.replace(agent, mode="local", local_fallback=None, model=model)
    return msgspec.structs.replace(profile, agent=agent)

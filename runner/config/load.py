"""Reads profiles: finds the file, validates it, and resolves the settings that follow from it.

Problems are reported with their key paths and with the values that a key expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import inspect

from runner.config.document import (
    Expanded,
    KeyPath,
    Problem,
    YamlValue,
    expand_all,
    format_key_path,
    is_server_variable,
    parse_yaml,
)
from runner.config.profile import (
    FALLBACK,
    GATEWAY,
    NODE_EXPECTED,
    NODE_PATTERN,
    VARIABLE_NAME_PATTERN,
    Amount,
    EnvironmentEntry,
    HostName,
    Price,
    Profile,
    RateLimit,
    SkipEntry,
    VariableValue,
)
from runner.errors import ConfigError
from runner.util.display_text import MASK, is_secret_name, mask, one_line
from runner.util.files import DataDir, default_data_dir, package_resource, read_regular, resolve_path

DEFAULT_PROFILE = "field-runner-4090"
MAX_PROFILE_BYTES = 1 << 20
SUFFIXES = (".yaml", ".yml")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_PROBLEMS = 20
FormatValue: TypeAlias = Callable[[KeyPath, YamlValue], str]
_HTTP = ("http", "https")
_VARIABLE_NAME = re.compile(VARIABLE_NAME_PATTERN)
_NATS = ("nats", "tls")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_VALUE_TYPES: dict[str | int, Any] = {
    "price": Price,
    "rate_limits": RateLimit,
    "env": VariableValue,
    "resources": Amount,
    "addresses": HostName,
}
"""Type of the values of each mapping whose keys the schema does not define."""
_DEFAULT_ENDPOINT_KEYS = ("mode", "api_endpoint", "local_fallback")
"""Keys of ``agent`` about the gateway and Ollama, which are used by default."""
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)

_Entries: TypeAlias = list[tuple[KeyPath, EnvironmentEntry | SkipEntry]]
_TYPE_NAMES: dict[type[inspect.Type], str] = {
    inspect.StrType: "a text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.NoneType: "nothing",
    inspect.DictType: "a mapping",
    inspect.VarTupleType: "a list",
}


class ProfileFile(NamedTuple):
    path: Path
    content: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def digest(self) -> str:
        return _digest(self.content)


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
        ConfigError: the profile is missing, unreadable or invalid; the message has the file, the key path of each
            invalid value, and the expected value.
    """
    file = _find_profile(name_or_path or DEFAULT_PROFILE, cwd, user_config or user_config_dir(environ))
    content, data = _read_data(file, environ)
    return convert_profile(data, str(file), environ), ProfileFile(cwd.absolute() / file, content)


def convert_profile(data: YamlValue, source: str, environ: Mapping[str, str]) -> Profile:
    """Return the profile with these data; the ``ConfigError`` of invalid data begins with ``source``."""
    built = build_profile(expand_all(data, environ), lambda key_path, value: _format_value(key_path, value, environ))
    if isinstance(built, Profile):
        return built
    lines = [f"{one_line(format_key_path(key_path))}: {reason}" for key_path, reason in built]
    raise ConfigError("\n  ".join([f"{source}:", *lines]) if len(lines) > 1 else f"{source}: {lines[0]}")


def _format_value(key_path: KeyPath, value: YamlValue, environ: Mapping[str, str]) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if is_server_variable(key_path) and value is not None:
        return f"'{MASK}'" if isinstance(value, str) else "true or false" if isinstance(value, bool) else "a number"
    if isinstance(value, str):
        secret = key_path[:1] == ("notify",) or (bool(key_path) and is_secret_name(str(key_path[-1])))
        return f"'{MASK if secret else one_line(mask(value, environ), 80)}'"
    return "nothing" if value is None else str(value).lower()


def _find_profile(name_or_path: str, cwd: Path, user_config: Path | None) -> Path:
    if "/" in name_or_path or name_or_path.endswith(SUFFIXES):
        path = cwd / name_or_path
        if _is_missing(path):
            raise ConfigError(f"There is no profile {path}. {_suggest_profile(path.stem, cwd, user_config)}")
        return path
    if not _NAME.fullmatch(name_or_path):
        raise ConfigError(
            f"'{one_line(name_or_path)}' is not a valid profile name: use up to 100 letters, digits, ., _ and -"
        )
    for folder in _profile_dirs(cwd, user_config):
        for suffix in SUFFIXES:
            if _is_file(file := folder.joinpath(name_or_path + suffix)):
                return file
    searched = ", ".join(map(str, _profile_dirs(cwd, user_config)))
    raise ConfigError(
        f"There is no profile named {name_or_path} in {searched}. {_suggest_profile(name_or_path, cwd, user_config)}"
    )


def _is_missing(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:  # unknown: opening the file reports the error
        return False


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # e.g. no permission to search the folder
        return False


def _profile_dirs(cwd: Path, user_config: Path | None) -> Iterator[Path]:
    yield cwd / "configs"
    if user_config is not None:
        yield user_config
    yield package_resource("configs")


def _suggest_profile(name: str, cwd: Path, user_config: Path | None) -> str:
    from difflib import get_close_matches  # needed only after a failed search

    names = profile_names(cwd, user_config)
    close = get_close_matches(name, names)
    return f"Did you mean {' or '.join(close)}?" if close else f"Available: {', '.join(names) or 'none'}."


def profile_names(cwd: Path, user_config: Path | None) -> list[str]:
    return sorted({name for folder in _profile_dirs(cwd, user_config) for name in _names_in(folder)})


def _names_in(folder: Path) -> list[str]:
    try:
        files = [Path(file.name) for file in folder.iterdir()]
    except OSError:  # missing or unreadable
        return []
    return [file.stem for file in files if file.suffix in SUFFIXES]


def default_environments(environ: Mapping[str, str], cwd: Path) -> YamlValue:
    """Return the environments of the default profile as its file has them, with all ``${VAR}``."""
    file = _find_profile(DEFAULT_PROFILE, cwd, user_config_dir(environ))
    data = _read_data(file, environ)[1]
    return data.get("environments", {}) if isinstance(data, dict) else {}


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
        return _digest(read_regular(file, MAX_PROFILE_BYTES)[0])
    except OSError:
        return None


def _digest(content: bytes) -> str:
    from hashlib import sha256  # imported late: only a node and its console compare digests

    return sha256(content).hexdigest()


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


def find_violations(profile: Profile, format_value: FormatValue) -> list[Problem]:
    entries = list(_entries(profile))
    return [
        *_duplicates(entries, "name"),
        *_duplicates(entries, "port"),
        *_invalid_variables(entries),
        *_invalid_urls(profile, entries, format_value),
        *_invalid_windows(profile, format_value),
        *_unknown_endpoints(profile),
        *_unserved_judge(profile),
    ]


def _entries(profile: Profile) -> Iterator[tuple[KeyPath, EnvironmentEntry | SkipEntry]]:
    environments = profile.environments
    tiers: dict[str, tuple[EnvironmentEntry | SkipEntry, ...]] = {
        "lightweight": environments.lightweight,
        "moderate": environments.moderate,
        "skip": environments.skip,
    }
    for tier, entries in tiers.items():
        for index, entry in enumerate(entries):
            yield ("environments", tier, index), entry


def _duplicates(entries: _Entries, key: str) -> Iterator[Problem]:
    first: dict[object, KeyPath] = {}
    for key_path, entry in entries:
        value = getattr(entry, key, None)
        given = value.casefold() if isinstance(value, str) else value
        if given is not None and (other := first.setdefault(given, key_path)) != key_path:
            same = f"{key} {value}" if key == "port" else key
            yield (*key_path, key), f"duplicate {same}; {format_key_path(other)} has the same {key}"


def _invalid_variables(entries: _Entries) -> Iterator[Problem]:
    for key_path, entry in entries:
        for name in entry.env if isinstance(entry, EnvironmentEntry) else ():
            if not _VARIABLE_NAME.fullmatch(name):
                yield (*key_path, "env", name), "expected a variable's name: letters, digits and _, no digit first"


def _invalid_urls(profile: Profile, entries: _Entries, format_value: FormatValue) -> Iterator[Problem]:
    for key_path, url in _http_urls(profile, entries):
        if url is not None and not _is_url(url, _HTTP):
            yield key_path, f"expected an http:// or https:// URL, got {format_value(key_path, url)}"
    key_path = ("nats", "url")
    for server in profile.nats.url.split(",") if profile.nats.url else ():
        if not _is_url(server.strip(), _NATS):
            value = format_value(key_path, server)
            yield key_path, f"expected nats:// or tls:// URLs separated by commas, got {value}"


def _invalid_windows(profile: Profile, format_value: FormatValue) -> Iterator[Problem]:
    events = profile.nats.streams.events
    if events.duplicate_window_sec > events.max_age_sec:  # the NATS server rejects such a stream
        key_path = ("nats", "streams", "events", "duplicate_window_sec")
        value = format_value(key_path, events.duplicate_window_sec)
        yield key_path, f"expected at most max_age_sec, which is {events.max_age_sec:g}, got {value}"


def _unknown_endpoints(profile: Profile) -> Iterator[Problem]:
    names = list(dict.fromkeys([GATEWAY, *profile.agent.endpoint_names, FALLBACK]))
    for name in profile.agent.rate_limits:
        if name not in names:
            yield ("agent", "rate_limits", name), f"unknown endpoint; known endpoints: {', '.join(names)}"


def _unserved_judge(profile: Profile) -> Iterator[Problem]:
    model, agent = profile.are.judge_model, profile.agent
    own_models = [*(entry.model for entry in agent.endpoints), agent.local_fallback or ""]
    if model is not None and agent.mode != "api" and None not in own_models and model not in own_models:
        yield ("are", "judge_model"), f"no endpoint serves it; known models: {', '.join(filter(None, own_models))}"


def _http_urls(profile: Profile, entries: _Entries) -> Iterator[tuple[KeyPath, str | None]]:
    yield ("agent", "api_endpoint"), profile.agent.api_endpoint
    for index, endpoint in enumerate(profile.agent.endpoints):
        yield ("agent", "endpoints", index, "url"), endpoint.url
    for key_path, entry in entries:
        if isinstance(entry, EnvironmentEntry):
            yield (*key_path, "base_url"), entry.base_url
    yield ("nats", "monitor_url"), profile.nats.monitor_url
    yield ("notify", "url"), profile.notify.url


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    if re.search(r"\s", text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def build_profile(expanded: Expanded, format_value: FormatValue) -> Profile | list[Problem]:
    """Return the profile, or the problems found.

    msgspec reports one problem per conversion. The invalid key is therefore removed and the conversion repeated, so
    that most files get all their problems at once, up to ``MAX_PROBLEMS``; the search ends at a problem that is not a
    key of a mapping.
    """
    if expanded.problems:
        return expanded.problems[:MAX_PROBLEMS]
    problems: list[Problem] = []
    while True:
        try:
            profile = _with_own_endpoints(msgspec.convert(expanded.data, Profile), expanded.data)
        except msgspec.ValidationError as exc:
            key_path, unknown = _locate(str(exc), expanded.data)
            if _restore_text(expanded, key_path):
                continue
            if any(key_path == reported for reported, _ in problems):  # a required key that was removed as invalid
                return problems
            problems.append((key_path, _reason(key_path, unknown, expanded.data, format_value)))
            if len(problems) == MAX_PROBLEMS or not _remove_key(expanded.data, key_path):
                return problems
        else:
            return problems or find_violations(profile, format_value) or profile


def _with_own_endpoints(profile: Profile, data: YamlValue) -> Profile:
    """Leave out the gateway and Ollama of a profile with ``endpoints`` that sets no key of theirs.

    Its default model is the model of its first endpoint.
    """
    keys, agent = _value_at(data, ("agent",)), profile.agent
    if not isinstance(keys, dict) or not agent.endpoints or not keys.keys().isdisjoint(_DEFAULT_ENDPOINT_KEYS):
        return profile
    model = agent.model if "model" in keys else agent.endpoints[0].model or agent.model
    agent = msgspec.structs.replace(agent, mode="local", local_fallback=None, model=model)
    return msgspec.structs.replace(profile, agent=agent)


def _locate(message: str, data: YamlValue) -> tuple[KeyPath, bool]:
    problem, separator, steps = message.rpartition(" - at `$")
    key_path: KeyPath = ()
    for key, index in _STEP.findall(steps if separator else ""):
        key_path += (_invalid_key(key_path, data) if index == "..." else int(index) if index else key,)
    field = _FIELD.fullmatch(problem if separator else message)
    if field is None:
        return key_path, False
    return (*key_path, field[2]), field[1] == "contains unknown"


def _invalid_key(key_path: KeyPath, data: YamlValue) -> str:
    """The message of msgspec has ``[...]`` in place of a key that the schema does not define; see ``_VALUE_TYPES``."""
    mapping, value_type = _value_at(data, key_path), _VALUE_TYPES.get(key_path[-1] if key_path else "", Any)
    for key, value in mapping.items() if isinstance(mapping, dict) else ():
        try:
            msgspec.convert(value, value_type)
        except msgspec.ValidationError:
            return key
    return "..."


def _value_at(data: YamlValue, key_path: KeyPath) -> YamlValue:
    for step in key_path:
        if isinstance(data, dict) and isinstance(step, str):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def _restore_text(expanded: Expanded, key_path: KeyPath) -> bool:
    """Replace a number, boolean or null at ``key_path`` by its text in ``expanded.texts``; False if it has none.

    A whole number in ``env`` of an environment has a text, too: its digits.
    """
    text = expanded.texts.pop(key_path, None)
    if text is None and is_server_variable(key_path) and type(value := _value_at(expanded.data, key_path)) is int:
        text = str(value)
    if text is None or not key_path:
        return False
    parent, last = _value_at(expanded.data, key_path[:-1]), key_path[-1]
    if isinstance(parent, dict):
        parent[str(last)] = text
    elif isinstance(parent, list) and isinstance(last, int):
        parent[last] = text
    return True


def _remove_key(data: YamlValue, key_path: KeyPath) -> bool:
    parent, last = _value_at(data, key_path[:-1]), key_path[-1] if key_path else None
    if not isinstance(parent, dict) or not isinstance(last, str) or last not in parent:
        return False
    del parent[last]
    return True


def _reason(key_path: KeyPath, unknown: bool, data: YamlValue, format_value: FormatValue) -> str:
    if unknown:
        return f"unknown key; known keys: {', '.join(known_keys(key_path[:-1]))}"
    return f"expected {expected_at(key_path)}, got {format_value(key_path, _value_at(data, key_path))}"


def expected_at(key_path: KeyPath) -> str:
    return _describe(_type_at(key_path))


def known_keys(key_path: KeyPath) -> list[str]:
    return [field.encode_name for field in _fields(_type_at(key_path))]


@cache
def _profile_type() -> inspect.Type:
    return inspect.type_info(Profile)


def _type_at(key_path: KeyPath) -> inspect.Type:
    current = _profile_type()
    for step in key_path:
        current = _child_type(_unwrap(current), step)
    return current


def _child_type(parent: inspect.Type, step: str | int) -> inspect.Type:
    if isinstance(parent, inspect.VarTupleType):
        return parent.item_type
    if isinstance(parent, inspect.DictType):
        return parent.value_type
    return next((field.type for field in _fields(parent) if field.encode_name == step), inspect.AnyType())


def _fields(annotated: inspect.Type) -> tuple[inspect.Field, ...]:
    struct = _unwrap(annotated)
    return struct.fields if isinstance(struct, inspect.StructType) else ()


def _unwrap(annotated: inspect.Type) -> inspect.Type:
    return annotated.type if isinstance(annotated, inspect.Metadata) else annotated


def _describe(expected: inspect.Type) -> str:
    if isinstance(expected, inspect.Metadata):
        return str((expected.extra_json_schema or {}).get("description") or _describe(expected.type))
    if isinstance(expected, inspect.UnionType):
        return ", or ".join(map(_describe, expected.types))
    if isinstance(expected, inspect.LiteralType):
        return f"one of {', '.join(map(str, expected.values))}"
    if isinstance(expected, inspect.StructType):
        return f"a mapping with the keys {', '.join(field.encode_name for field in expected.fields)}"
    return _TYPE_NAMES.get(type(expected), "another type")

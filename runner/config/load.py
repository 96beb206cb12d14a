"""Profile lookup and loading, and the settings resolved from a profile: state directory and node name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from runner.config.diagnostics import KeyPath, expand_all, format_key_path, is_server_variable
from runner.config.document import YamlValue, parse_yaml
from runner.config.field_types import NODE_EXPECTED, NODE_PATTERN
from runner.config.profile import Profile
from runner.config.validate import build_profile
from runner.errors import ConfigError
from runner.util.display_text import MASK, is_secret_name, mask, one_line
from runner.util.files import DataDir, default_data_dir, package_resource, read_regular, resolve_path

DEFAULT_PROFILE = "field-runner-4090"
MAX_PROFILE_BYTES = 1 << 20
SUFFIXES = (".yaml", ".yml")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


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


def resolve_data_dir(option: str | None, environ: Mapping[str, str], profile: Profile, cwd: Path) -> Path:
    return find_data_dir(option, environ, profile, cwd).path


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

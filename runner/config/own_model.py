"""A model server and settings of the user's own: for one run without a profile, and as a new profile file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from runner.config.document import YamlValue, parse_yaml, replace_values
from runner.config.load import ProfileFile, convert_profile, profile_names, user_config_dir
from runner.config.profile import GATEWAY, Profile
from runner.errors import ConfigError
from runner.util.files import make_folder, replace_file

Settings: TypeAlias = Mapping[str, int | float | None]
"""Values by the keys of ``SECTIONS``; None: the profile lacks the key."""

REQUESTS: Final = "concurrent_requests"
"""Key of the limit of requests at a time to the first endpoint."""
SECTIONS: Final = {
    "temperature": "agent",
    "max_tokens": "agent",
    REQUESTS: "agent",
    "concurrent": "episode",
    "max_rounds": "episode",
    "max_duration_sec": "episode",
}
"""The section of the profile by the key of each setting."""
_OF_ENDPOINTS: Final = ("mode", "api_endpoint", "local_fallback", "rate_limits")
"""Keys of ``agent`` that belong to the endpoints."""


def settings_of(profile: Profile) -> dict[str, int | float | None]:
    limit = profile.agent.rate_limits.get(next(iter(profile.agent.endpoint_names), ""))
    found = {REQUESTS: limit and limit.concurrent_requests}
    others = {key: getattr(getattr(profile, section), key) for key, section in SECTIONS.items() if key != REQUESTS}
    return {key: {**others, **found}[key] for key in SECTIONS}


class NewProfile(NamedTuple):
    path: Path
    lost: list[str]  # sections whose comments it lacks, or ``all``


class OwnModel(NamedTuple):
    """A model of a server that the user names; ``key_env`` is the variable with its key, None if it needs none."""

    url: str
    model: str
    key_env: str | None = None

    def used_by(self, profile: Profile, environ: Mapping[str, str]) -> Profile:
        own = convert_profile({"id": "own", "agent": self._agent()}, "The model's endpoint", environ).agent
        if self.key_env and not environ.get(self.key_env, "").strip():
            raise ConfigError(
                f"The variable {self.key_env}, which is to hold the model's key, is not set or empty; set it first, "
                f"e.g. with: read -rs {self.key_env} && export {self.key_env}"
            )
        agent = msgspec.structs.replace(
            profile.agent, mode=own.mode, local_fallback=own.local_fallback, model=own.model, endpoints=own.endpoints
        )
        return msgspec.structs.replace(profile, agent=agent)

    def write_profile(
        self, base: ProfileFile, settings: Settings, environ: Mapping[str, str], cwd: Path, name: str = ""
    ) -> NewProfile:
        """Write a profile like ``base`` with this endpoint and these settings; without a URL, with the endpoints of it.

        The file is in the user's folder of profiles, else in ``configs`` of ``cwd``. Its stem is the name for
        ``--config``, made of ``name``, or else of the model's name or that of ``base``, and of no other profile.

        Raises:
            ConfigError: a value is not valid, or the file cannot be written.
        """
        user_config = user_config_dir(environ)
        folder, taken = user_config or cwd / "configs", profile_names(cwd, user_config)
        wanted = name or self.model.rpartition("/")[2] or base.path.stem
        stem = re.sub(r"[^A-Za-z0-9]+", "-", wanted)[:60].strip("-").lower() or "model"
        names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        name = next(each for each in names if each not in taken)
        text = base.content.decode("utf-8-sig")
        text, lost = replace_values(text, {"id": name, **self._sections(parse_yaml(text), base, settings, environ)})
        convert_profile(parse_yaml(text), "The new profile", environ)
        file = folder / f"{name}.yaml"
        try:
            make_folder(folder)
            file.touch(0o600, exist_ok=False)  # another console may write one of this name
            try:
                replace_file(file, text.encode())
            except OSError:
                file.unlink()
                raise
        except OSError as exc:
            raise ConfigError(f"The profile {name} cannot be written to {folder}: {exc.strerror}") from exc
        return NewProfile(file, lost)

    def _sections(
        self, data: YamlValue, base: ProfileFile, settings: Settings, environ: Mapping[str, str]
    ) -> dict[str, YamlValue]:
        """Return the sections that differ from those of ``base``; what does not change stays as it is written there."""
        before = settings_of(convert_profile(data, str(base.path), environ))
        sections = {name: _section(data, name) for name in ("agent", "episode")}
        if self.url:
            kept = {key: value for key, value in sections["agent"].items() if key not in _OF_ENDPOINTS}
            sections["agent"] = {**kept, **self._agent()}
            before[REQUESTS] = None
        elif self.key_env:
            raise ConfigError("type the URL of the server for which the variable has the key")
        elif self.model:
            sections["agent"]["model"] = self.model
        for key, value in settings.items():
            if value == before[key]:
                continue
            section = sections[SECTIONS[key]]
            if key == REQUESTS:
                agent = convert_profile({"id": "new", "agent": section}, "The new profile", environ).agent
                _limit_requests(section, next(iter(agent.endpoint_names), ""), value)
            elif value is None:
                section.pop(key, None)
            else:
                section[key] = value
        return {name: section for name, section in sections.items() if section != _section(data, name)}

    def _agent(self) -> dict[str, YamlValue]:
        if not self.model:
            raise ConfigError("type the model's name, as the server calls it")
        endpoint: dict[str, YamlValue] = {"url": self.url, **({"api_key_env": self.key_env} if self.key_env else {})}
        return {"model": self.model, "endpoints": [endpoint]}


def _section(data: YamlValue, name: str) -> dict[str, YamlValue]:
    section = data.get(name) if isinstance(data, dict) else None
    return dict(section) if isinstance(section, dict) else {}


def _limit_requests(agent: dict[str, YamlValue], endpoint: str, n_requests: float | None) -> None:
    first, *others = endpoints if isinstance(endpoints := agent.get("endpoints"), list) and endpoints else [None]
    if endpoint != GATEWAY and isinstance(first, dict) and "${" in str(first.get("url")) and "name" not in first:
        endpoint = "server"  # else the file would have the present value of the variable
        agent["endpoints"] = [{"name": endpoint, **first}, *others]
    limits = _section(agent, "rate_limits")
    limits[endpoint] = {**_section(limits, endpoint), REQUESTS: n_requests}
    agent["rate_limits"] = limits

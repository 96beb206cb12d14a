"""A model server of the user's own: for one run without a profile, and as a new profile file."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

from runner.config.document import parse_yaml, resolve_scalar
from runner.config.load import convert_profile, default_environments, profile_names, user_config_dir
from runner.config.profile import Profile
from runner.errors import ConfigError
from runner.util.files import make_folder


class OwnModel(NamedTuple):
    """A model of a server that the user names; ``key_env`` is the variable with its key, None if it needs none."""

    url: str
    model: str
    key_env: str | None = None

    def used_by(self, profile: Profile, environ: Mapping[str, str]) -> Profile:
        own = convert_profile(parse_yaml(f"id: own\n{self._yaml()}"), "The model's endpoint", environ).agent
        if self.key_env and not environ.get(self.key_env, "").strip():
            raise ConfigError(
                f"The variable {self.key_env}, which is to hold the model's key, is not set or empty; set it first, "
                f"e.g. with: read -rs {self.key_env} && export {self.key_env}"
            )
        agent = msgspec.structs.replace(
            profile.agent, mode=own.mode, local_fallback=own.local_fallback, model=own.model, endpoints=own.endpoints
        )
        return msgspec.structs.replace(profile, agent=agent)

    def write_profile(self, environ: Mapping[str, str], cwd: Path, name: str = "") -> Path:
        """Write a profile with this endpoint and the environments of the default profile; return its new file.

        The file is in the user's folder of profiles, else in ``configs`` of ``cwd``. Its stem is the name for
        ``--config``, made of ``name`` or else the model's name, and of no other profile.

        Raises:
            ConfigError: the URL or the variable's name is not valid, or the file cannot be written.
        """
        user_config = user_config_dir(environ)
        folder, taken = user_config or cwd / "configs", profile_names(cwd, user_config)
        wanted = name or self.model.rpartition("/")[2]
        stem = re.sub(r"[^A-Za-z0-9]+", "-", wanted)[:60].strip("-").lower() or "model"
        names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        name = next(each for each in names if each not in taken)
        environments = yaml.dump({"environments": default_environments(environ, cwd)}, Dumper=_Dumper, sort_keys=False)
        text = f"id: {_quote(name)}\n{self._yaml()}{environments}"
        convert_profile(parse_yaml(text), "The new profile", environ)
        file = folder / f"{name}.yaml"
        try:
            make_folder(folder)
            file.touch(0o600, exist_ok=False)
            file.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"The profile {name} cannot be written to {folder}: {exc.strerror}") from exc
        return file

    def _yaml(self) -> str:
        key = f", api_key_env: {_quote(self.key_env)}" if self.key_env else ""
        endpoint = f"{{ url: {_quote(self.url)}{key} }}"
        return f"agent:\n  model: {_quote(self.model)}\n  endpoints:\n    - {endpoint}\n"


class _Dumper(yaml.SafeDumper):
    """Also quotes texts such as ``08``, which are numbers to ``parse_yaml`` and texts to PyYAML."""


def _represent(dumper: _Dumper, text: str) -> yaml.Node:
    style = None if isinstance(resolve_scalar(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # double-quoted YAML reads JSON's escapes

"""Where a node keeps its state, what it is called, and where its user's profiles lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from runner.config.profile import NODE_EXPECTED, NODE_PATTERN, Profile
from runner.errors import ConfigError
from runner.util.text import one_line


def user_config_dir(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CONFIG_HOME/agentgym-console/configs``, by default under ``~/.config``; None without a home folder."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # the XDG specification: a relative one is ignored
        home = environ.get("HOME")
        if not home:
            return None
        base = f"{home}/.config"
    return Path(base, "agentgym-console", "configs")


def resolve_data_dir(option: str | None, environ: Mapping[str, str], profile: Profile, cwd: Path) -> Path:
    """The state directory, absolute: ``--data-dir``, ``AGENTGYM_DATA_DIR``, the profile's ``data_dir``, ``./data``.

    An empty value counts as not given. A leading ``~/`` is the home folder also where no shell has replaced it.
    """
    chosen = option or environ.get("AGENTGYM_DATA_DIR") or profile.data_dir or "data"
    home = environ.get("HOME")
    if home and (chosen == "~" or chosen.startswith("~/")):
        chosen = home + chosen[1:]
    return cwd.absolute() / chosen


def resolve_node(option: str | None, environ: Mapping[str, str], profile: Profile, hostname: str) -> str:
    """The node's name: ``--node``, ``AGENTGYM_NODE``, the profile's ``hardware.node``, else made of the host name.

    Raises:
        ConfigError: when the option or the variable is no valid name; a host name is made one.
    """
    for source, name in (("--node", option), ("AGENTGYM_NODE", environ.get("AGENTGYM_NODE"))):
        if name:
            return _checked(source, name)
    return profile.hardware.node or re.sub(r"[^A-Za-z0-9_-]", "-", hostname)[:64] or "local"


def _checked(source: str, name: str) -> str:
    if not re.search(NODE_PATTERN, name):
        raise ConfigError(f"{source}: expected {NODE_EXPECTED}, got '{one_line(name)}'")
    return name

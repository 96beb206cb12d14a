"""One invocation: its options with the profile and the places they lead to."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from runner.cli.arguments import Options
from runner.config import Profile, load_profile, resolve_data_dir, resolve_node
from runner.errors import ConfigError
from runner.spec import BatchSpec, resolve_environment
from runner.types import Limits


@dataclass(frozen=True)
class Session:
    """The options, the loaded profile, the state directory and the node's name."""

    options: Options
    profile: Profile
    data_dir: Path
    node: str

    @classmethod
    def open(cls, options: Options) -> Session:
        """Load the profile and find the places; nothing is created yet.

        Raises:
            ConfigError: when the profile or a name cannot be used.
        """
        cwd = Path.cwd()
        profile = load_profile(options.config, environ=os.environ, cwd=cwd)
        return cls(
            options=options,
            profile=profile,
            data_dir=resolve_data_dir(options.data_dir, os.environ, profile, cwd),
            node=resolve_node(options.node, os.environ, profile, socket.gethostname()),
        )

    def specs(self) -> list[BatchSpec]:
        """The batches that ``--run`` or ``--battery`` stand for.

        Raises:
            ConfigError: for an environment that is unknown, skipped or not installed.
        """
        options = self.options
        if options.run is not None:
            names = [options.run]
        elif options.battery == "all":
            names = [entry.name for entry in self.profile.tier("lightweight") + self.profile.tier("moderate")]
        else:
            names = [entry.name for entry in self.profile.tier(options.battery or "lightweight")]
        return [self._spec(resolve_environment(self.profile, name)) for name in names]

    def _spec(self, env: str) -> BatchSpec:
        options, episode = self.options, self.profile.episode
        return BatchSpec(
            env=env,
            agent=options.agent,
            repeat=options.repeat,
            attempts=options.attempts,
            task_index=options.task_index,
            seed=options.seed,
            concurrency=options.concurrency or episode.concurrent,
            limits=Limits(options.max_rounds or episode.max_rounds, options.max_duration or episode.max_duration_sec),
            mode="compat" if options.compat else "strict",
            tracing=options.tracing or self.profile.tracing,
            script=_read_script(options.script),
        ).checked()


def _read_script(path: Path | None) -> tuple[str, ...] | None:
    if path is None:
        return None
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"The script {path} cannot be read ({exc}); give a UTF-8 file with one action per line"
        ) from exc
    return tuple(line for line in lines if line.strip())

"""One invocation: its options with the profile and the places they lead to."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from runner.batch.spec import DEFAULT_AGENT, BatchSpec, resolve_environment, resolve_model
from runner.cli.arguments import Options
from runner.cli.terminal import err
from runner.config import EnvironmentEntry, Profile, load_profile, resolve_data_dir, resolve_node
from runner.envs.placement import Placement, choose_placement, environment_entry
from runner.errors import ConfigError
from runner.inference.models import Models
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
        """The batches that ``--run`` or ``--battery`` stand for; of a battery what can be played, the rest is named.

        Raises:
            ConfigError: for an environment that is unknown, skipped or not installed, or when nothing can be played.
        """
        if self.options.run is not None:
            return [self._spec(self.options.run)]
        specs: list[BatchSpec] = []
        refused: list[str] = []
        for entry in self._battery():
            try:
                specs.append(self._spec(entry.name))
            except ConfigError as exc:
                refused.append(str(exc))
        if not specs:
            reasons = "\n".join(dict.fromkeys(refused)) or f"Profile {self.profile.id} has no environment of that tier"
            raise ConfigError(reasons)
        for reason in refused:
            err(f"Left out: {reason}")
        return specs

    def choose(self, spec: BatchSpec) -> Placement:
        """Where a batch that is about to begin is played.

        Raises:
            ConfigError: for a server that it needs and that is not there.
        """
        return choose_placement(environment_entry(self.profile, spec.env), spec.env, spec.mode)

    def models(self) -> Models:
        """Whom agents ask that ask a model; nobody is asked yet."""
        return Models.of(self.profile.agent, os.environ)

    @property
    def agent(self) -> str:
        """Who plays."""
        return self.options.agent or DEFAULT_AGENT

    def _battery(self) -> tuple[EnvironmentEntry, ...]:
        if self.options.battery == "all":
            return self.profile.tier("lightweight") + self.profile.tier("moderate")
        return self.profile.tier(self.options.battery or "lightweight")

    def _spec(self, name: str) -> BatchSpec:
        options, episode = self.options, self.profile.episode
        return BatchSpec(
            env=resolve_environment(self.profile, name),
            agent=self.agent,
            model=resolve_model(self.agent, self.profile.agent, options.model),
            repeat=options.repeat,
            attempts=options.attempts,
            task_index=options.task_index,
            seed=options.seed,
            concurrency=options.concurrency or episode.concurrent,
            limits=Limits(
                options.max_rounds or episode.max_rounds,
                options.max_duration or episode.max_duration_sec,
                self.profile.agent.max_unparsed,
            ),
            mode="compat" if options.compat else "strict",
            tracing=options.tracing or self.profile.tracing,
            script=_read_script(options.script),
        ).validated()


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

"""Settings of one invocation of ``agentgym-runner``: options, profile, state directory and node name."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.arguments import Options
from runner.cli.terminal import print_stderr
from runner.config import EnvironmentEntry, Profile, load_profile, resolve_data_dir, resolve_node
from runner.errors import ConfigError
from runner.types import Limits, Workers

if TYPE_CHECKING:  # loaded by the methods below: a list of environments or results needs none of it
    from runner.batch.spec import BatchSpec
    from runner.envs.placement import Placement
    from runner.inference.profile_models import Models


@dataclass(frozen=True)
class RunSession:
    """The options, profile, state directory and node name of one invocation."""

    options: Options
    profile: Profile
    data_dir: Path
    node: str

    @classmethod
    def open(cls, options: Options) -> RunSession:
        """Load the profile and resolve all paths and names, without creating files.

        Raises:
            ConfigError: the profile or a name is invalid.
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
        """Return the batches of ``--run`` or ``--battery``.

        For a battery, print a message for each unavailable environment and skip it.

        Raises:
            ConfigError: the environment is unknown, not installed or skipped by the profile, or no environment of the
                battery is available.
        """
        if self.options.run is not None:
            return [self._spec(self.options.run)]
        specs: list[BatchSpec] = []
        rejected: list[str] = []
        for entry in self._battery():
            try:
                specs.append(self._spec(entry.name))
            except ConfigError as exc:
                rejected.append(str(exc))
        if not specs:
            reasons = "\n".join(dict.fromkeys(rejected)) or f"Profile {self.profile.id} has no environment of that tier"
            raise ConfigError(reasons)
        for reason in rejected:
            print_stderr(f"Skipped: {reason}")
        return specs

    def choose_placement(self, spec: BatchSpec) -> Placement:
        """Choose whether a batch runs embedded or on an environment server.

        Raises:
            ConfigError: the required server is not available.
        """
        from runner.envs.placement import choose_profile_placement

        return choose_profile_placement(self.profile, spec.env, spec.mode)

    def models(self) -> Models:
        """Create the models of the profile, without sending a request."""
        from runner.inference.profile_models import Models

        return Models.from_settings(self.profile.agent, os.environ)

    @property
    def agent(self) -> str:
        """The name of the agent to run."""
        from runner.batch.spec import DEFAULT_AGENT

        return self.options.agent or DEFAULT_AGENT

    @property
    def workers(self) -> Workers:
        """Where the episodes run; with no value in the options and the profile, the default."""
        from runner.node.worker_pools import choose_workers

        n_slots = min(self.concurrency, self.options.repeat * self.options.attempts)
        return choose_workers(self.profile, self.options.workers, n_slots, self.agent)

    @property
    def concurrency(self) -> int:
        """Number of episodes at a time."""
        return self.options.concurrency or self.profile.episode.concurrent

    def _battery(self) -> tuple[EnvironmentEntry, ...]:
        if self.options.battery == "all":
            return self.profile.tier("lightweight") + self.profile.tier("moderate")
        return self.profile.tier(self.options.battery or "lightweight")

    def _spec(self, name: str) -> BatchSpec:
        from runner.batch.spec import BatchSpec, resolve_environment, resolve_model

        options, episode = self.options, self.profile.episode
        return BatchSpec(
            env=resolve_environment(self.profile, name),
            agent=self.agent,
            model=resolve_model(self.agent, self.profile.agent, options.model),
            repeat=options.repeat,
            attempts=options.attempts,
            task_index=options.task_index,
            seed=options.seed,
            concurrency=self.concurrency,
            workers=episode.workers if options.workers is None else options.workers,
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

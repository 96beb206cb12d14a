"""Settings of one invocation of ``agentgym-runner``: options, profile, state directory and node name."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.cli.arguments import Options
from runner.cli.terminal import print_stderr
from runner.config import Profile, ProfileFile, find_data_dir, load_profile, read_profile, resolve_node
from runner.errors import ConfigError
from runner.util.display_text import one_line
from runner.util.files import require_named_folder

if TYPE_CHECKING:  # loaded by the methods below: a list of environments or results needs none of it
    from runner.batch.spec import BatchRequest, ResolvedBatch
    from runner.inference.profile_models import Models


class RunSession(NamedTuple):
    options: Options
    profile: Profile
    data_dir: Path
    node: str
    profile_file: ProfileFile | None = None

    @classmethod
    def open(cls, options: Options) -> RunSession:
        """Load the profile and resolve all paths and names, without creating files; report an odd state directory."""
        cwd = Path.cwd()
        profile, profile_file = read_profile(options.config, environ=os.environ, cwd=cwd)
        profile = _with_endpoint(profile, options)
        data_dir = find_data_dir(options.data_dir, os.environ, profile, cwd)
        if data_dir.notice:
            print_stderr(data_dir.notice)
        return cls(
            options=options,
            profile=profile,
            data_dir=data_dir.path,
            node=resolve_node(options.node, os.environ, profile, socket.gethostname()),
            profile_file=profile_file,
        )

    def batches(self) -> list[ResolvedBatch]:
        """Return the batches of ``--run`` or ``--battery``: all of one model, then all of the next one.

        For a battery, print a message for each unavailable environment and skip it.

        Raises:
            ConfigError: the environment is unknown, not installed or skipped by the profile, or no environment of the
                battery is available, or a model is named twice.
        """
        from runner.batch.spec import resolve_batch

        tasks = None
        if self.options.tasks is not None:
            from runner.formats.task_files import read_tasks

            tasks = read_tasks(self.options.tasks, self.options.run)

        def resolve(env: str, model: str | None) -> ResolvedBatch:
            return resolve_batch(self.profile, self.request(env, model, (tasks or {}).get(env.lower())))

        if self.options.run is not None:
            return [resolve(self.options.run, model) for model in self.model_names]
        batches: list[ResolvedBatch] = []
        rejected: list[str] = []
        battery = self.options.battery or "lightweight"
        listed = (entry for tier, entry in self.profile.tiered_entries() if battery in ("all", tier))
        entries = [each for each in listed if tasks is None or each.name.lower() in tasks]
        if other := {*(tasks or ())} - {each.name.lower() for each in entries}:
            raise ConfigError(f"{self.options.tasks} has tasks of {', '.join(sorted(other))}, not in this battery")
        for entry, model in [(entry, model) for model in self.model_names for entry in entries]:
            try:
                batches.append(resolve(entry.name, model))
            except ConfigError as exc:
                rejected.append(str(exc))
        if not batches:
            reasons = "\n".join(dict.fromkeys(rejected)) or f"Profile {self.profile.id} has no environment of that tier"
            raise ConfigError(reasons)
        for reason in dict.fromkeys(rejected):
            print_stderr(f"Skipped: {reason}")
        return batches

    @property
    def model_names(self) -> tuple[str | None, ...]:
        if self.options.model is None:
            return (None,)
        if "," not in self.options.model:
            return (self.options.model,)
        names = tuple(name.strip() for name in self.options.model.split(","))
        if "" in names or len(set(names)) < len(names):
            raise ConfigError(f"--model {self.options.model!r} has an empty or repeated name; give each model once")
        return names

    def models(self) -> Models:
        from runner.inference.profile_models import Models

        return Models(self.profile.agent, os.environ)

    def request(self, env: str = "", model: str | None = None, tasks: tuple[int, ...] | None = None) -> BatchRequest:
        """Return the batch of an environment, with a model or the profile's, that the options describe."""
        from runner.batch.spec import BatchRequest
        from runner.types import Budget

        options = self.options
        fields = {name: value for name, value in options._asdict().items() if name in BatchRequest.__struct_fields__}
        fields |= {
            "env": env,
            "model": model,
            "script": _read_script(options.script),
            "tasks": tasks,
            "max_duration_sec": options.max_duration,
        }
        limits = Budget(cost=options.budget_cost, tokens=options.budget_tokens, errors_in_a_row=options.budget_errors)
        fields["budget"] = limits if limits != Budget() else None
        return BatchRequest(**fields, mode="compat" if options.compat else "strict")


def _with_endpoint(profile: Profile, options: Options) -> Profile:
    """Return the profile with the model server of ``--endpoint`` in place of its own, if that is given."""
    if options.endpoint is None:
        if options.key_env is not None:
            raise ConfigError("--key-env belongs to --endpoint URL; the keys of a profile are named by api_key_env")
        return profile
    from runner.config.own_model import OwnModel

    own = OwnModel(options.endpoint, options.model or profile.agent.model, options.key_env)
    profile = own.used_by(profile, os.environ)
    if options.model is None:
        from runner.inference.profile_models import Models

        (state,) = Models(profile.agent, os.environ).check()
        listed = one_line(", ".join(state.listed), 500)
        raise ConfigError(f"--endpoint needs --model NAME{listed and f'; that server lists {listed}'}")
    return profile


def _read_script(path: Path | None) -> tuple[str, ...] | None:
    if path is None:
        return None
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        advice = "give a UTF-8 file with one action per line"
        raise ConfigError(f"The script {path} cannot be read ({exc}); {advice}") from exc
    return tuple(line for line in lines if line.strip())


def read_state(options: argparse.Namespace, *, creates: bool = False) -> tuple[Profile, Path]:
    """Return the profile and the state directory of a subcommand that runs no episodes, and log to standard error.

    Raises ``ConfigError`` if the profile is invalid, or ``--data-dir`` names no folder.
    """
    from runner.cli.reports import log_to_stderr  # imported late: a list of environments reads no episodes

    log_to_stderr()
    cwd = Path.cwd()
    profile = load_profile(options.config, environ=os.environ, cwd=cwd)
    data_dir = find_data_dir(options.data_dir, os.environ, profile, cwd).path
    if not creates:
        require_named_folder(options.data_dir, data_dir)
    return profile, data_dir

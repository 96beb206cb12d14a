"""How an environment server is started: its command, working directory and environment variables."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.config import EnvironmentEntry, resolve_path
from runner.errors import ConfigError
from runner.node.env_servers.process_guard import SERVER_VARIABLE_PREFIX
from runner.util.display_text import mask, masker, one_line, public_variables, secret_lines


@dataclass(frozen=True)
class Launch:
    """Everything that starts one server.

    Attributes:
        guard_environ: environment variables of the process guard, which passes them to the server. Those that the
            profile sets have ``SERVER_VARIABLE_PREFIX`` before their names: variables of the loader or of the
            interpreter, such as ``LD_PRELOAD``, must not affect the guard.
        mask: hides the values of the profile's variables, and the secrets of this process.
    """

    command: list[str]
    folder: Path | None
    guard_environ: dict[str, str] = field(repr=False)
    mask: Callable[[str], str] = field(repr=False)


def prepare_launch(entry: EnvironmentEntry, environ: Mapping[str, str]) -> Launch:
    """Check that the server of an environment can be started, and return how."""
    command = _command(entry)
    folder = None if entry.cwd is None else _folder(entry.name, resolve_path(entry.cwd, environ, Path.cwd()))
    variables = _variables(entry.env)
    inherited = child_environ(environ)
    if _locate(command[0], folder, variables.get("PATH", inherited["PATH"])) is None:
        place = "" if folder is None else f" (searched from its cwd {_shown(folder)})"
        raise ConfigError(
            f"server_cmd of {entry.name} starts {_shown(command[0])}, which is not installed here{place}; "
            "install it, or correct server_cmd"
        )
    prefixed = {SERVER_VARIABLE_PREFIX + name: value for name, value in variables.items()}
    return Launch(command, folder, inherited | prefixed, masker(environ, secret_lines(entry.env.values())))


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a server process inherits.

    Variables that look like secrets or contain a URL with a password are removed. PATH also contains the folder of the
    commands of this Python installation.
    """
    safe = public_variables(environ)
    passed = {name: value for name, value in safe.items() if not name.startswith(SERVER_VARIABLE_PREFIX)}
    return passed | {"PATH": _with_own_commands(passed.get("PATH"))}


def _variables(configured: Mapping[str, str]) -> dict[str, str]:
    own_path = {"PATH": _with_own_commands(configured["PATH"])} if "PATH" in configured else {}
    return {**configured, **own_path}


def _with_own_commands(search_path: str | None) -> str:
    return os.pathsep.join(filter(None, (search_path, str(Path(sys.executable).parent))))


def _command(entry: EnvironmentEntry) -> list[str]:
    if entry.server_cmd is None:
        raise ConfigError(f"{entry.name} has no server_cmd in the profile; add one")
    try:
        command = shlex.split(entry.server_cmd)
    except ValueError as exc:
        raise ConfigError(f"server_cmd of {entry.name} is not a valid command line: {exc}") from exc
    if not command:
        raise ConfigError(f"server_cmd of {entry.name} is empty")
    return command


def _folder(env: str, folder: Path) -> Path:
    if os.access(folder, os.X_OK) and folder.is_dir():
        return folder
    problem = "is not a folder that this user can enter" if os.access(folder, os.F_OK) else "does not exist"
    raise ConfigError(f"cwd of {env} is {_shown(folder)}, which {problem}; create it, or correct cwd in the profile")


def _locate(program: str, folder: Path | None, search_path: str) -> str | None:
    """Return the path of a program as the operating system finds it from the server's working directory."""
    if folder is None:
        return shutil.which(program, path=search_path)
    if os.sep in program:
        return shutil.which(folder / program)
    return shutil.which(program, path=os.pathsep.join(str(folder / part) for part in search_path.split(os.pathsep)))


def _shown(text: str | Path) -> str:
    return one_line(mask(str(text)))

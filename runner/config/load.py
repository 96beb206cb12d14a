"""Finds a profile by name or path and loads it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runner.config.document import Value, parse
from runner.config.expand import expand_all
from runner.config.locations import user_config_dir
from runner.config.problems import Where, where_text
from runner.config.profile import Profile
from runner.config.validate import build
from runner.errors import ConfigError
from runner.util.text import MASK, is_secret_name, mask, one_line

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

DEFAULT_PROFILE = "field-runner-4090"
MAX_BYTES = 1 << 20
SUFFIXES = (".yaml", ".yml")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def load_profile(
    name_or_path: str | None, *, environ: Mapping[str, str], cwd: Path, user_config: Path | None = None
) -> Profile:
    """Load a profile.

    Args:
        name_or_path: a path if it holds a separator or ends in .yaml or .yml; else a name that is looked for in
            ``./configs``, the user's folder and the shipped profiles; None for the default profile.
        environ: the variables that ``${VAR}`` stands for, and whose secrets are masked in errors.
        cwd: what relative paths and ``./configs`` start from.
        user_config: the user's folder of profiles, by default ``user_config_dir(environ)``.

    Raises:
        ConfigError: naming the file, the path of each bad value in it, and what was expected there.
    """
    file = _find(name_or_path or DEFAULT_PROFILE, cwd, user_config or user_config_dir(environ))
    try:
        data = parse(_read(file))
    except ConfigError as exc:
        raise ConfigError(f"{file}: {one_line(mask(str(exc), environ))}") from exc
    built = build(expand_all(data, environ), lambda where, value: _shown(where, value, environ))
    if isinstance(built, Profile):
        return built
    lines = [f"{one_line(where_text(where))}: {reason}" for where, reason in built]
    raise ConfigError("\n  ".join([f"{file}:", *lines]) if len(lines) > 1 else f"{file}: {lines[0]}")


def _shown(where: Where, value: Value, environ: Mapping[str, str]) -> str:
    """A value from the file as an error may quote it: on one line, without secrets."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        secret = bool(where) and is_secret_name(str(where[-1]))
        return f"'{MASK if secret else one_line(mask(value, environ), 80)}'"
    return "nothing" if value is None else str(value).lower()


def _find(name_or_path: str, cwd: Path, user_config: Path | None) -> Traversable:
    if "/" in name_or_path or name_or_path.endswith(SUFFIXES):
        path = cwd / name_or_path
        if _missing(path):
            raise ConfigError(f"There is no profile {path}. {_nearest(path.stem, cwd, user_config)}")
        return path
    if not _NAME.fullmatch(name_or_path):
        raise ConfigError(
            f"'{one_line(name_or_path)}' is no profile name: expected up to 100 letters, digits, ., _ and -"
        )
    for folder in _folders(cwd, user_config):
        for suffix in SUFFIXES:
            if _is_file(file := folder.joinpath(name_or_path + suffix)):
                return file
    looked = ", ".join(map(str, _folders(cwd, user_config)))
    raise ConfigError(
        f"There is no profile named {name_or_path} in {looked}. {_nearest(name_or_path, cwd, user_config)}"
    )


def _missing(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:  # there, or not: opening it will say what is wrong
        return False


def _is_file(file: Traversable) -> bool:
    try:
        return file.is_file()
    except OSError:  # a folder that we may not look into
        return False


def _folders(cwd: Path, user_config: Path | None) -> Iterator[Traversable]:
    yield cwd / "configs"
    if user_config is not None:
        yield user_config
    from runner.util.package_data import (
        shipped,  # only reached, and only then worth its import, where the others hold nothing
    )

    yield shipped("configs")


def _nearest(name: str, cwd: Path, user_config: Path | None) -> str:
    from difflib import get_close_matches  # only a failed search needs it

    names = sorted({known for folder in _folders(cwd, user_config) for known in _names(folder)})
    close = get_close_matches(name, names)
    return f"Did you mean {' or '.join(close)}?" if close else f"Known are: {', '.join(names) or 'none'}."


def _names(folder: Traversable) -> list[str]:
    try:
        files = [Path(file.name) for file in folder.iterdir()]
    except OSError:  # not there, or not ours to read
        return []
    return [file.stem for file in files if file.suffix in SUFFIXES]


def _opened(file: Traversable) -> IO[bytes]:
    if not isinstance(file, Path):
        return file.open("rb")
    # Without O_NONBLOCK a pipe in the place of the file would be waited for.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError("cannot be read: it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _read(file: Traversable) -> str:
    try:
        with _opened(file) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}") from exc
    if len(content) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc

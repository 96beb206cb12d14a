"""A profile: YAML, the expansion of variables, and the checks of its values."""

from __future__ import annotations

import json
import re

import msgspec
import yaml

from runner.config import Profile, find_data_dir, load_profile, resolve_node
from runner.config.document import parse_yaml
from runner.errors import ConfigError
from tests.fuzz.oracles import SECRET, check_displayable, check_masked, outcome, scratch_folder

TOKENS = (
    b"id: x\n",
    b"environments:\n  lightweight:\n    - name: Maze\n",
    b"server_cmd: ",
    b"env: {TOKEN: ${API_KEY}}",
    b"${API_KEY}",
    b"${A:-b}",
    b"&a ",
    b"*a",
    b"!!python/object ",
    b"<<: *a",
    b"---\n",
    b"? ",
    b"|\n  ",
    b"'\\n'",
    b'"\\x1b"',
    b"api_endpoint: http://u:p@h/",
)
ENVIRON = {"API_KEY": SECRET, "N": "12", "EMPTY": "", "CONTROL": "\x1b[2J"}
FOLDER = scratch_folder("profile")
PATH = FOLDER / "profile.yaml"


def check(data: bytes) -> None:
    _check_structure(data)
    profile = _load(data)
    if isinstance(profile, Exception):
        check_displayable(str(profile), lines=True)
        check_masked(str(profile))
        return
    assert _load(_as_yaml(profile)) == profile
    check_masked(repr(profile.environments))
    assert len(profile.tiered_entries()) == len({entry.name.casefold() for _, entry in profile.tiered_entries()})
    assert find_data_dir(None, ENVIRON, profile, PATH.parent).path.is_absolute()
    assert resolve_node(None, ENVIRON, profile, "host")


def _as_yaml(profile: Profile) -> bytes:
    """Return a profile as JSON that is YAML, too: YAML reads the two escapes of a character beyond U+FFFF as two."""
    text = json.dumps(msgspec.to_builtins(profile), ensure_ascii=False).replace("${", "$\\u007b")
    return re.sub(r"[\x7f-\uffff]", lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _check_structure(data: bytes) -> None:
    """Check that a text has the same mappings and lists as for PyYAML."""
    try:
        text = data.decode("utf-8-sig")
        value = parse_yaml(text)
        expected = yaml.load(text, Loader=yaml.CBaseLoader)
    except (UnicodeDecodeError, ConfigError, yaml.composer.ComposerError):  # the last for an anchor that is used twice
        return
    assert _shape(value) == _shape(expected)


def _shape(value: object) -> object:
    match value:
        case dict():
            return {key: _shape(item) for key, item in value.items()}
        case list():
            return [_shape(item) for item in value]
    return None


def _load(data: bytes) -> Profile | Exception:
    PATH.write_bytes(data)
    return outcome(lambda: load_profile(str(PATH), environ=ENVIRON, cwd=PATH.parent), ConfigError)

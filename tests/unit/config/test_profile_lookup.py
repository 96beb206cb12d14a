"""Lookup of profiles by name or path, and resolution of the state directory and the node name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.config import Profile, find_data_dir, load_profile, resolve_node
from runner.config.profile import Hardware
from runner.errors import ConfigError


def test_a_profile_is_a_path_or_is_searched_in_three_folders_in_order(tmp_path: Path) -> None:
    user = tmp_path / "home" / "agentgym-console" / "configs"
    local = tmp_path / "configs"
    for folder in (user, local):
        folder.mkdir(parents=True)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "home")}

    def loaded_id() -> str:
        return load_profile(None, environ=environ, cwd=tmp_path).id

    assert loaded_id() == "field-runner-4090"
    (user / "field-runner-4090.yml").write_text("id: from-user")
    assert loaded_id() == "from-user"
    (local / "field-runner-4090.yaml").write_text("id: from-here")
    assert loaded_id() == "from-here"
    assert load_profile("field-runner-4090", environ={}, cwd=user, user_config=user).id == "from-user"
    folder = tmp_path / ".config" / "agentgym-console" / "configs"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("id: mine")
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "relative"}
    assert load_profile("mine", environ=environ, cwd=tmp_path).id == "mine"
    (tmp_path / "a.yaml").write_text("id: a")
    (tmp_path / "b").write_text("id: b")
    assert [load_profile(path, environ={}, cwd=tmp_path).id for path in ("a.yaml", "./b")] == ["a", "b"]


def test_an_unknown_profile_suggests_similar_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean field-runner-4090\?") as by_name:
        load_profile("field-runer-4090", environ={}, cwd=tmp_path, user_config=tmp_path / "mine")
    assert str(tmp_path / "configs") in str(by_name.value)
    assert str(tmp_path / "mine") in str(by_name.value)
    with pytest.raises(ConfigError, match=r"Did you mean field-runner-4090\?"):
        load_profile("field-runner-4090.yaml", environ={}, cwd=tmp_path)


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a b", "a\x00b", "a\\b", "x" * 101, "~", "\u202e"])
def test_a_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid profile name"):
        load_profile(name, environ={}, cwd=tmp_path)


def test_an_unreadable_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_profile(f"{tmp_path}/", environ={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_profile("/" + "x" * 5000, environ={}, cwd=tmp_path)


def test_the_state_directory_is_option_then_variable_then_profile_then_default(tmp_path: Path) -> None:
    profile = Profile(id="x", data_dir="from/profile")
    environ = {"AGENTGYM_DATA_DIR": "/from/env", "HOME": "/home/me"}
    assert find_data_dir("opt", environ, profile, tmp_path).path == tmp_path / "opt"
    assert find_data_dir(None, environ, profile, tmp_path).path == Path("/from/env")
    assert find_data_dir(None, {"AGENTGYM_DATA_DIR": ""}, profile, tmp_path).path == tmp_path / "from" / "profile"
    xdg = {"XDG_DATA_HOME": "/xdg"}
    assert find_data_dir(None, xdg, Profile(id="x"), tmp_path).path == Path("/xdg/agentgym-console")
    assert find_data_dir("~/gym", environ, profile, tmp_path).path == Path("/home/me/gym")
    assert find_data_dir("x", {}, profile, Path("sub")).path.is_absolute()


def test_the_node_name_is_option_then_variable_then_profile_then_host() -> None:
    profile = Profile(id="x", hardware=Hardware(node="from-profile"))
    environ = {"AGENTGYM_NODE": "from-env"}
    assert resolve_node("from-option", environ, profile, "host") == "from-option"
    assert resolve_node(None, environ, profile, "host") == "from-env"
    assert resolve_node(None, {}, profile, "host") == "from-profile"
    assert resolve_node(None, {}, Profile(id="x"), "my.laptop.local") == "my-laptop-local"
    assert resolve_node(None, {}, Profile(id="x"), "é" * 99) == "-" * 64
    assert resolve_node(None, {}, Profile(id="x"), "") == "local"


@pytest.mark.parametrize("name", ["a b", "a.b", "x" * 65, "a\n", "../x", "\x1b"])
def test_an_invalid_node_name_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="--node: expected a name of 1 to 64"):
        resolve_node(name, {}, Profile(id="x"), "host")
    with pytest.raises(ConfigError, match="AGENTGYM_NODE: expected"):
        resolve_node(None, {"AGENTGYM_NODE": name}, Profile(id="x"), "host")


@pytest.mark.skipif(os.geteuid() == 0, reason="run as a user other than root, who may read every folder")
def test_an_unreadable_folder_is_skipped(tmp_path: Path) -> None:
    unreadable = tmp_path / "configs"
    unreadable.mkdir(mode=0)
    assert load_profile(None, environ={}, cwd=tmp_path).id == "field-runner-4090"


@pytest.mark.timeout(10)
def test_a_pipe_or_folder_named_like_a_profile_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml"):
        with pytest.raises(ConfigError, match=rf"{name}: cannot be read: it is not a regular file"):
            load_profile(name, environ={}, cwd=tmp_path)

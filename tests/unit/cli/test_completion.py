"""Completion scripts of the shells, as the shells run them, and the man page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agentgym_tui.cli import main as console_main
from runner.cli import main
from runner.cli.arguments import EPILOG, SUBCOMMANDS
from scripts.build_man_page import MAN_PAGE, man_page
from tests.conftest import Install
from tests.support.command import COMMAND, run_agentgym

QUERY = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$(({n} - 1))
{function}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
IN_ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PROMPT=; cd $1; autoload -U compinit; compinit -u -D; eval \"\$(<$2)\""
zpty -w z 'finish () { print "<"END">" }; zle -N finish; bindkey "^X" finish; bindkey "^I" complete-word'
zpty -w z 'compadd () { typeset -a hits; [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] || builtin compadd -A hits "$@"
  for each in $hits; do print "<HIT>$each</HIT>"; done; builtin compadd "$@" }'
zpty -w z 'print "<"READY">"'
zpty -r z output '*<READY>*'
zpty -w -n z "$3"$'\t\x18'
zpty -r z output '*<END>*'
print -r -- $output
zpty -d z
"""
"""Prints the completions of a line; the arguments are a folder, a script for zsh, and the line."""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    script = folder / "completion.bash"
    printed = run_agentgym(folder, "completion", "bash")
    assert (printed.returncode, printed.stderr) == (0, "")
    script.write_text(printed.stdout)
    return script


def complete_in_bash(script: Path, cwd: Path, *words: str, command: str = COMMAND) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in (command, *words))
    function = f"_shtab_{Path(command).name.replace('-', '_')}"
    query = QUERY.format(script=script, words=quoted, n=1 + len(words), function=function)
    completed = subprocess.run(
        ["bash", "--norc", "-c", query], cwd=cwd, capture_output=True, text=True, timeout=30, check=True
    )
    assert completed.stderr == ""
    return completed.stdout.split("\n")[:-1] if completed.stdout.strip() else []


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["no"], ["node"]),
        (["--budget-"], ["--budget-cost", "--budget-tokens", "--budget-errors"]),
        (["--battery", ""], ["lightweight", "moderate", "all"]),
        (["--run", "M"], ["Maze"]),
        (["--agent", "or"], ["oracle"]),
        (["--repeat", ""], []),
        (["node", "--idle"], ["--idle-exit"]),
        (["serve", "--run"], []),
        (["serve", "Text"], ["TextCraft"]),
        (["completion", "z"], ["zsh"]),
        (["--run", "Maze", "--config", "my"], ["my profile.yaml", "my-other.yaml"]),
        (["import", "my"], ["my profile.yaml", "my-other.yaml"]),
        (["compare", "x", "my"], ["my profile.yaml", "my-other.yaml"]),
        (["tag", "--data-dir", "st"], ["state"]),
    ],
)
def test_bash_completes_subcommands_options_values_and_paths(
    bash_script: Path, tmp_path: Path, words: list[str], completions: list[str]
) -> None:
    for name in ("my profile.yaml", "my-other.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "state").mkdir()
    assert sorted(complete_in_bash(bash_script, tmp_path, *words)) == sorted(completions)


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["la"], ["launch"]),
        (["completion", "z"], ["zsh"]),
        (["launch", "--no"], ["--node"]),
        (["watch", "--since", ""], []),
        (["open", "my"], ["my runs", "my.log"]),
        (["launch", "--config", "my"], ["my runs", "my.log"]),
    ],
)
def test_bash_completes_the_command_of_the_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], completions: list[str]
) -> None:
    assert console_main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    for name in ("my runs", "my.log"):
        (tmp_path / name).touch()
    assert sorted(complete_in_bash(script, tmp_path, *words, command="agentgym-tui")) == sorted(completions)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid_for_its_shell_and_names_every_subcommand(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console = ("launch", "watch", "open", "config", "data-dir", "since")
    for command, names in ((main, SUBCOMMANDS), (console_main, console)):
        assert command(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert [name for name in names if name not in script] == []
        if shutil.which(shell) is None:
            pytest.skip(f"install {shell} to run this test")
        subprocess.run([shell, "-n"], input=script, text=True, timeout=30, check=True)


LINES = [
    ("pre", ["preflight"]),
    ("--battery l", ["lightweight"]),
    ("serve M", ["Maze"]),
    ("--agent or", ["oracle"]),
    ("import my", ["my profile.yaml"]),
    ("compare x my", ["my profile.yaml"]),
    ("--repeat ", []),
]


@pytest.mark.long
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_subcommands_values_and_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"install {shell} to run this test")
    (tmp_path / "my profile.yaml").touch()
    script = tmp_path / "script"
    assert main(["completion", shell]) == 0
    script.write_text(capsys.readouterr().out)
    for words, completions in LINES:
        line = f"agentgym-runner {words}"
        if shell == "zsh":
            command = [program, "-f", "-c", IN_ZSH, "zsh", str(tmp_path), str(script), line]
        else:
            command = [program, "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        rows = [row.partition("\t")[0] for row in completed.stdout.splitlines()]
        found = re.findall("<HIT>(.*?)</HIT>", completed.stdout) if shell == "zsh" else rows
        assert found == completions, words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_that_a_shell_would_interpret_are_left_out(
    install: Install, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    hostile = ("$(touch x)", "evil'b", "`id`", "-evil", "evil b", 'evil"b', "evil;id", "evil:b")
    install(agents={"fine": "tests.support.fakes:UpAgent"} | dict.fromkeys(hostile, "tests.support.fakes:UpAgent"))
    assert console_main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert not any(name in script for name in hostile)
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "fine" in script
    assert not any(name in script for name in hostile)


def test_the_man_page_is_that_of_the_parsers() -> None:
    assert man_page() == MAN_PAGE.read_text("utf-8"), "run: python -m scripts.build_man_page"
    if (groff := shutil.which("groff")) is None:
        pytest.skip("install groff to run this test")
    rendered = subprocess.run([groff, "-man", "-ww", "-Tutf8", MAN_PAGE], capture_output=True, timeout=30, check=True)
    assert rendered.stderr == b""
    text = re.sub(r".\x08|\x1b\[[0-9;]*m", "", rendered.stdout.decode())
    for expected in (*(f"COMMAND {name}" for name in SUBCOMMANDS), "--budget-cost COST", "--idle-exit SEC", "130"):
        assert expected in text


def test_help_lists_every_subcommand() -> None:
    listed = re.findall(r"^  ([a-z-]+)  +\S", EPILOG.partition("exit codes")[0], re.MULTILINE)
    assert sorted(listed) == sorted(SUBCOMMANDS)

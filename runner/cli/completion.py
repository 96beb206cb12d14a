"""The command ``agentgym-runner completion``: prints the completion script of a shell, derived from the parsers."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from runner import plugins
from runner.cli import subcommand_module
from runner.cli.arguments import SUBCOMMANDS
from runner.cli.terminal import output_stream
from runner.util.argument_parser import SafeArgumentParser, describe_completion

PROGRAM = "agentgym-runner"
_PATHS = frozenset({"FILE", "DIR", "PATH", "NAME|PATH", "NAME|@FILE", "A", "B"})
"""Placeholders of values that may be paths."""
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
"""Words that no shell interprets: installed packages choose the names of environments and agents."""


class Option(NamedTuple):
    """An option of the command, or a subcommand's positional argument, whose ``names`` are empty.

    Attributes:
        values: the words that may follow it.
        is_path: whether its value may be a path.
    """

    names: tuple[str, ...]
    help: str
    placeholder: str
    values: tuple[str, ...]
    takes_value: bool
    is_path: bool


Options: TypeAlias = Mapping[str, Sequence[Option]]
"""Options of each subcommand; those of an empty name need none."""


def main_completion(argv: Sequence[str]) -> int:
    shell = build_parser().parse_args(argv).shell
    output_stream().write(completion_script(shell, PROGRAM, options_by_command()))
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = SafeArgumentParser(prog=f"{PROGRAM} completion")
    describe_completion(parser)
    return parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each subcommand, and under an empty name that of the options without one."""
    modules = {"": "runner.cli.arguments"} | {name: subcommand_module(name) for name in SUBCOMMANDS}
    return {name: importlib.import_module(module).build_parser() for name, module in modules.items()}


def parsers_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each subcommand of a parser, and the parser itself under an empty name."""
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return {"": parser, **commands.choices}


def options_by_command() -> dict[str, list[Option]]:
    known = {"ENV": plugins.registered_names(plugins.ENVS), "--agent": plugins.registered_names(plugins.AGENTS)}
    return options_of(parsers(), known)


def completion_script(shell: str, program: str, options: Options) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](program, options)


def options_of(
    parsers: Mapping[str, argparse.ArgumentParser], known: Mapping[str, Sequence[str]] | None = None
) -> dict[str, list[Option]]:
    """Return the options of each parser; ``known`` has values of arguments without choices, by placeholder or name."""
    return {
        name: [
            _option(each, known or {}) for each in parser._actions if not isinstance(each, argparse._SubParsersAction)
        ]
        for name, parser in parsers.items()
    }


def _option(action: argparse.Action, known: Mapping[str, Sequence[str]]) -> Option:
    placeholder = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    names = tuple(action.option_strings)
    values = action.choices or known.get(placeholder) or next((known[name] for name in names if name in known), ())
    return Option(
        names=names,
        help=(action.help or "").replace("%%", "%"),
        placeholder=placeholder,
        values=tuple(word for word in map(str, values) if _SAFE.fullmatch(word)),
        takes_value=action.nargs != 0,
        is_path=placeholder in _PATHS,
    )


def _bash(program: str, options: Options) -> str:
    return _BASH.format(
        function=f"_{program.replace('-', '_')}",
        subcommands="|".join(_subcommands(options)),
        cases="\n".join(_bash_cases(options)),
        program=program,
    )


def _subcommands(options: Options) -> list[str]:
    return [name for name in options if name]


def _bash_cases(options: Options) -> Iterator[str]:
    for command, its_options in options.items():
        for option in its_options:
            pattern = "|".join(f'"{command}:{name}"' for name in option.names)
            if option.names and option.takes_value:
                yield f'        {pattern}) values="{" ".join(option.values)}"; files={int(option.is_path)} ;;'
    for command, its_options in options.items():
        words = [name for option in its_options for name in option.names or option.values]
        own = [*_subcommands(options), *words] if not command else words
        files = int(any(option.is_path for option in its_options if not option.names))
        yield f'        "{command}:"*) values="{" ".join(own)}"; files={files} ;;'


_BASH = """{function}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="" prefix="" values="" files=0
    if [ "$previous" = "=" ]; then previous="${{COMP_WORDS[COMP_CWORD-2]}}"; fi  # bash splits --run=Maze
    case "$current" in
    "=") current="" ;;
    --*=*) prefix="${{current%%=*}}=" previous="${{current%%=*}}" current="${{current#*=}}" ;;
    esac
    if [ "$COMP_CWORD" -gt 1 ]; then
        case "${{COMP_WORDS[1]}}" in
        {subcommands}) command="${{COMP_WORDS[1]}}" ;;
        esac
    fi
    case "$command:$previous" in
{cases}
    esac
    COMPREPLY=($(compgen -P "$prefix" -W "$values" -- "$current"))
    if [ "$files" = 1 ]; then
        local IFS=$'\n'
        COMPREPLY+=($(compgen -P "$prefix" -f -- "$current"))
    fi
}}
complete -o filenames -F {function} {program}
"""


def _zsh(program: str, options: Options) -> str:
    set_up = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"
    return set_up + _bash(program, options)


def _fish(program: str, options: Options) -> str:
    everything = " ".join(_subcommands(options))
    lines = [f"complete -c {program} -f"]
    lines += [f"complete -c {program} -n __fish_is_first_token -a {name}" for name in _subcommands(options)]
    for command, its_options in options.items():
        condition = (
            f"'__fish_seen_subcommand_from {command}'" if command else f"'not __fish_seen_subcommand_from {everything}'"
        )
        for option in its_options:
            values = f" -a '{' '.join(option.values)}'" if option.values else ""
            if not option.names:
                argument = " -F" if option.is_path else values
                lines += [f"complete -c {program} -n {condition}{argument}"] if argument else []
                continue
            switches = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
            )
            value = f" {'-r -F' if option.is_path else '-x'}{values}" if option.takes_value else ""
            lines.append(f"complete -c {program} -n {condition} {switches}{value} -d {_fish_text(option.help)}")
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""Commands that print a text for other programs: the completion script of a shell, and coding agents' instructions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from importlib.resources import files

from runner import plugins
from runner.cli import subcommand_module
from runner.cli.arguments import SUBCOMMANDS, build_parser, subcommand_parser
from runner.cli.terminal import output_stream, print_line
from runner.util.argument_parser import SafeArgumentParser, describe_completion

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Words that no shell interprets: installed packages choose the names of environments and agents."""


def main_completion(argv: Sequence[str]) -> int:
    shell = completion_parser().parse_args(argv).shell
    whole = build_parser()
    commands = whole.add_subparsers()
    for name, parser in subcommand_parsers().items():
        commands.add_parser(name, parents=[parser], add_help=False, help=SUBCOMMANDS[name])
    output_stream().write(completion_script(shell, whole))
    return 0


def completion_parser() -> argparse.ArgumentParser:
    parser = SafeArgumentParser(prog="agentgym-runner completion")
    describe_completion(parser)
    return parser


def subcommand_parsers() -> dict[str, argparse.ArgumentParser]:
    modules = {name: vars(subcommand_module(name)) for name in SUBCOMMANDS}
    own = "{}_parser".format
    return {name: (each.get(own(name.replace("-", "_"))) or each["build_parser"])() for name, each in modules.items()}


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for a parser with its subcommands; it also has the installed environments and agents."""
    import shtab

    installed = {"ENV": plugins.registered_names(plugins.ENVS), "AGENT": plugins.registered_names(plugins.AGENTS)}
    words = {kind: list(filter(_SAFE.fullmatch, names)) for kind, names in installed.items()}
    if shell != "bash":
        form = "({})" if shell == "zsh" else "{}"
        return shtab.complete(
            parser, shell, choice_functions={kind: form.format(" ".join(words[kind])) for kind in words}
        )
    lines = {kind: "\n".join(names) for kind, names in words.items()}  # bash splits at new lines alone there
    functions = [f"_agentgym_{kind}() {{ compgen -W '{text}' -- \"$1\"; }}" for kind, text in lines.items()]
    names = {kind: f"_agentgym_{kind}" for kind in words}
    return shtab.complete(parser, shell, preamble="\n".join(functions), choice_functions=names)


def main_skill(argv: Sequence[str]) -> int:
    skill_parser().parse_args(argv)
    print_line(files("runner").joinpath("SKILL.md").read_text("utf-8").rstrip())
    return 0


def skill_parser() -> SafeArgumentParser:
    return subcommand_parser("skill", "Print SKILL.md, with which coding agents use these commands.")

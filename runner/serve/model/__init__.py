"""A test endpoint in the place of a language model: OpenAI's protocol, answers by an oracle or a script, and faults."""

from runner.serve.model.app import ModelApp
from runner.serve.model.faults import Behaviour, Fault
from runner.serve.model.oracle import OraclePlayer
from runner.serve.model.players import EchoPlayer, Player, ScriptPlayer
from runner.serve.model.reply import NAME, Reply, ScriptedCall, read_script
from runner.serve.model.server import ModelServer

__all__ = [
    "NAME",
    "Behaviour",
    "EchoPlayer",
    "Fault",
    "ModelApp",
    "ModelServer",
    "OraclePlayer",
    "Player",
    "Reply",
    "ScriptPlayer",
    "ScriptedCall",
    "read_script",
]

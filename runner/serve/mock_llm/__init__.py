"""A test endpoint in the place of a language model: OpenAI's protocol, answers by an oracle or a script, and faults."""

from runner.serve.mock_llm.app import ModelApp
from runner.serve.mock_llm.faults import Behaviour, Fault
from runner.serve.mock_llm.oracle import OraclePlayer
from runner.serve.mock_llm.players import EchoPlayer, Player, ScriptPlayer
from runner.serve.mock_llm.reply import NAME, Reply, ScriptedCall, read_script
from runner.serve.mock_llm.server import ModelServer

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

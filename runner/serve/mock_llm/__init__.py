"""A test endpoint that replaces a language model: OpenAI's protocol, replies of an oracle or a script, faults."""

from runner.serve.mock_llm.app import ModelApp
from runner.serve.mock_llm.faults import Behavior, Fault
from runner.serve.mock_llm.oracle import OracleResponder
from runner.serve.mock_llm.scripted_reply import (
    TEST_MODEL_NAME,
    EchoResponder,
    Responder,
    ScriptedCall,
    ScriptedReply,
    ScriptResponder,
    read_script,
)

__all__ = [
    "TEST_MODEL_NAME",
    "Behavior",
    "EchoResponder",
    "Fault",
    "ModelApp",
    "OracleResponder",
    "Responder",
    "ScriptResponder",
    "ScriptedCall",
    "ScriptedReply",
    "read_script",
]

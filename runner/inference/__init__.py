"""Models: a chain of endpoints that answers an agent, and what each answer took."""

from runner.inference.chat_format import split_thinking
from runner.inference.endpoints import EndpointInfo
from runner.inference.health import EndpointHealth
from runner.inference.manager import InferenceManager
from runner.inference.session import Inference, InferenceSession

__all__ = [
    "EndpointHealth",
    "EndpointInfo",
    "Inference",
    "InferenceManager",
    "InferenceSession",
    "split_thinking",
]

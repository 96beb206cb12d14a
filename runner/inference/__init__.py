"""LLM inference: a chain of endpoints with fallback, and the usage of each answer."""

from runner.inference.chat_format import split_thinking
from runner.inference.endpoints import EndpointInfo
from runner.inference.health import EndpointHealth
from runner.inference.inference_session import Inference, InferenceSession
from runner.inference.manager import InferenceManager

__all__ = [
    "EndpointHealth",
    "EndpointInfo",
    "Inference",
    "InferenceManager",
    "InferenceSession",
    "split_thinking",
]

"""A server that looks like TensorZero's gateway."""

from __future__ import annotations

from tests.support.rude_model import RudeModel, completion_response, http_response

GATEWAY_ID = "01a1febd-adab-7631-81fc-0d45a7fed731"
GATEWAY_HEALTH = http_response(200, b'{"gateway": "ok", "clickhouse": "ok"}')
CHAT_PATH = "/openai/v1/chat/completions"


def rude_gateway(completion: bytes, **routes: bytes) -> RudeModel:
    """Return a gateway that answers every inference with ``completion``, and other paths with ``routes``."""
    known = {"/health": GATEWAY_HEALTH, CHAT_PATH: completion}
    return RudeModel(
        completion_response("wrong path"), routes=known | {f"/{path}": body for path, body in routes.items()}
    )

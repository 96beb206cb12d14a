"""Validation of payloads against ``docs/schemas``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def validate(subject: str, payload: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Check the payload against the schema of its subject; return it decoded.

    Args:
        subject: canonical subject, for live subjects optionally with the node's name; ``agentgym.control.request`` or
            ``agentgym.control.reply`` for control messages.
        payload: JSON of the message.
    """
    value = json.loads(payload, parse_constant=_reject_constant)
    _validator(".".join(subject.split(".")[:4]) if subject.startswith("agentgym.live.") else subject).validate(value)
    return value


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _reject_constant(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")

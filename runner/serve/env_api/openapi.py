"""The OpenAPI document of a server, from the table its routes are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from runner.serve.env_api.fields import Field
from runner.serve.env_api.routes import Endpoint

Schema: TypeAlias = dict[str, Any]


def document(title: str, version: str, endpoints: Sequence[Endpoint], *, plain_errors: bool) -> Schema:
    """An OpenAPI 3.1 document; ``plain_errors`` says whether instances answer with status 500 what they cannot do."""
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint)
        if plain_errors:
            operation["responses"]["500"] = _PLAIN_ERROR
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": {"HTTPValidationError": _MALFORMED}},
    }


def _operation(endpoint: Endpoint) -> Schema:
    operation: Schema = {"summary": endpoint.summary, "responses": {"200": _responded("What was asked for", {})}}
    if endpoint.query:
        operation["parameters"] = [
            {"name": field.name, "in": "query", "required": field.required, "schema": _field(field)}
            for field in endpoint.query
        ]
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _object(endpoint.body)}},
        }
    if endpoint.query or endpoint.body is not None:
        reference = {"$ref": "#/components/schemas/HTTPValidationError"}
        operation["responses"]["422"] = _responded("A malformed request", reference)
    return operation


def _object(fields: Sequence[Field]) -> Schema:
    return {
        "type": "object",
        "properties": {field.name: _field(field) for field in fields},
        "required": [field.name for field in fields if field.required],
    }


def _field(field: Field) -> Schema:
    if field.one_of:
        return {"type": field.kind, "enum": list(field.one_of)}
    return {"type": field.kind} if field.required else {"type": [field.kind, "null"], "default": field.default}


def _responded(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_PLAIN_ERROR: Schema = {
    "description": "What cannot be done, as AgentGym's server says it",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}
_MALFORMED: Schema = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "loc", "msg"],
                "properties": {
                    "type": {"type": "string"},
                    "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                    "msg": {"type": "string"},
                    "input": {},
                    "ctx": {"type": "object"},
                },
            },
        }
    },
}

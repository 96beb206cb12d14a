"""Requests to environment servers and validation of their responses.

No response is trusted, and no error message quotes text that may hold a task's answer.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec

from runner.errors import EnvironmentFault, ServerGone
from runner.types import Cells, unpack_cells
from runner.util.display_text import one_line
from runner.util.json_accessors import as_dict, as_list, decode_json

JsonPath: TypeAlias = tuple[str | int, ...]
"""Path to a value in a JSON reply: object keys and list indices; an empty path is the reply itself."""


class ServerRequest(msgspec.Struct, frozen=True):
    """A POST of a JSON body, or a GET if there is no body; ``url`` holds no credentials."""

    env: str
    url: str
    body: bytes | None = None

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    def fault(self, problem: str, advice: str) -> EnvironmentFault:
        """Return an error with the message ``<env>: <method> <url> <body> <problem>. <advice>``."""
        return EnvironmentFault(self._message(problem, advice))

    def gone(self, problem: str, advice: str, *, timed_out: bool = False) -> ServerGone:
        return ServerGone(self._message(problem, advice), timed_out=timed_out)

    def _message(self, problem: str, advice: str) -> str:
        body = "" if self.body is None else f" {one_line(self.body[:1000].decode('utf-8', 'replace'))}"
        request = f"{self.method} {one_line(self.url)}{body}"
        return f"{one_line(self.env, 100)}: {request} {problem}. {advice}"


class ServerResponse(msgspec.Struct, frozen=True):
    status: int
    content_type: str
    body: bytes


CHECK_ADDRESS_ADVICE = "This may be another server or another version; check its port or base_url in the profile"
CHECK_LOG_ADVICE = "Check the server's log, then run the task again"

ADVICE_BY_STATUS = {
    401: "The server requires a login: set base_url to http://USER:PASSWORD@HOST or http://:TOKEN@HOST",
    404: CHECK_ADDRESS_ADVICE,
    405: CHECK_ADDRESS_ADVICE,
    422: CHECK_ADDRESS_ADVICE,
}
"""HTTP status -> advice for the user."""
_MAX_NUMBER = 1e100
_T = TypeVar("_T")
_ANSWER_FIELD = "ground_truth"
"""Field with the gold query in SQLGym's reply to ``/step``; an error text that contains the name is not shown."""


def decode_response(request: ServerRequest, response: ServerResponse) -> object:
    """Raises ``EnvironmentFault`` if the status is not 2xx, no JSON, or it is AgentGym's ``{"error": …}``."""
    check_status(request, response)
    try:
        payload: object = msgspec.json.decode(response.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        # status, size and type only: the text may contain the task's answer
        kind = one_line(response.content_type.partition(";")[0], 60) or "no declared type"
        body = f"{len(response.body)} bytes of {kind}" if response.body else "no body"
        problem = f"returned status {response.status} and {body}, which is not JSON ({one_line(str(exc), 100)})"
        raise request.fault(problem, CHECK_ADDRESS_ADVICE) from None
    if isinstance(payload, dict) and payload.get("error") is not None:
        text = _quote(payload["error"])
        raise request.fault(f"returned an error{text or ' without a text'}", CHECK_LOG_ADVICE)
    return payload


def check_status(request: ServerRequest, response: ServerResponse) -> None:
    """Raises ``EnvironmentFault`` unless the status is 2xx, ``ServerGone`` if a gateway has no server."""
    if 300 <= response.status < 400:
        advice = "Redirects are not followed; set base_url to the address that it redirects to"
        raise request.fault(f"was redirected (status {response.status})", advice)
    if not 200 <= response.status < 300:
        advice = ADVICE_BY_STATUS.get(response.status, CHECK_LOG_ADVICE)
        has_no_server = response.status in (502, 503, 504)  # of a gateway
        error = request.gone if has_no_server else request.fault
        raise error(f"returned status {response.status}{_error_text(response)}", advice)


class Payload:
    """Decoded JSON of a response; accessors raise ``EnvironmentFault`` for values of other types."""

    def __init__(self, request: ServerRequest, value: object) -> None:
        self._request = request
        self._value = value

    def fault(self, problem: str, advice: str) -> EnvironmentFault:
        return self._request.fault(problem, advice)

    def has(self, path: JsonPath) -> bool:
        return self._find(path) is not None

    def text(self, path: JsonPath) -> str:
        return self._read(path, str, "a text")

    def texts(self, path: JsonPath) -> list[str]:
        return self._read(path, list[str], "a list of texts")

    def number(self, path: JsonPath) -> float:
        """Its size is limited so that sums stay finite."""
        expected = f"a number up to {_MAX_NUMBER:g}"
        if abs(number := self._read(path, float, expected)) <= _MAX_NUMBER:
            return number
        raise self._wrong_type(path, expected)

    def flag(self, path: JsonPath) -> bool:
        return self._read(path, bool, "true or false")

    def id(self, path: JsonPath) -> int | str:
        """A 64-bit integer or a string of 1-200 characters."""
        value = self._find(path)
        if (type(value) is int and abs(value) < 2**63) or (isinstance(value, str) and 0 < len(value) <= 200):
            return value
        raise self._wrong_type(path, "an id")

    def cells(self, path: JsonPath) -> Cells | None:
        """Its texts are untrusted. Return None if the value describes no picture."""
        return unpack_cells(self._find(path))

    def _find(self, path: JsonPath) -> Any:  # noqa: ANN401 - any JSON value
        value: Any = self._value
        for key in path:
            if isinstance(key, str):
                value = value.get(key) if isinstance(value, dict) else None
            else:
                value = value[key] if isinstance(value, list) and key < len(value) else None
        return value

    def _read(self, path: JsonPath, kind: type[_T], expected: str) -> _T:
        try:
            return msgspec.convert(self._find(path), kind)
        except msgspec.ValidationError:
            raise self._wrong_type(path, expected) from None

    def _wrong_type(self, path: JsonPath, expected: str) -> EnvironmentFault:
        # names types only, since any value may be the task's answer
        where = f" at {'.'.join(map(str, path))}" if path else ""
        shape = _type_name(self._value)
        if isinstance(self._value, dict):
            fields = ", ".join(one_line(key, 30) for key in list(self._value)[:10])
            shape = f"an object with {fields or 'no fields'}"
        actual = f"; found {_type_name(self._find(path))} there" if path else ""
        return self.fault(f"returned {shape}; expected {expected}{where}{actual}", CHECK_ADDRESS_ADVICE)


def _type_name(value: object) -> str:
    number = "a number"
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", int: number, float: number}
    return names.get(type(value), "nothing")


def _error_text(response: ServerResponse) -> str:
    """Quote FastAPI's ``{"detail": [...]}``, AgentGym's ``{"error": …}`` or plain text; empty if there is none."""
    payload = decode_json(response.body)
    if payload is None and response.content_type.startswith("text/plain"):
        return _quote(response.body[:1000].decode("utf-8", "replace"))
    detail = as_dict(payload).get("detail", as_dict(payload).get("error"))
    if not isinstance(detail, list):
        return _quote(detail)
    return _quote("; ".join(map(_field_error, map(as_dict, detail[:3]))))


def _field_error(problem: dict[str, Any]) -> str:
    # one of FastAPI's validation errors, e.g. "body.game: Field required"
    path = ".".join(map(str, as_list(problem.get("loc"))[:5]))
    return f"{path}: {str(problem.get('msg', ''))[:200]}" if problem else ""


def _quote(text: object) -> str:
    if not isinstance(text, str) or not text:
        return ""
    return " that is hidden because it may hold the answer" if _ANSWER_FIELD in text.lower() else f' "{one_line(text)}"'

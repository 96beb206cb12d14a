"""Reads what servers answer. Nothing of it is believed, and no error quotes what may hold a task's answer."""

from __future__ import annotations

from typing import Any

import msgspec

from runner.envs.http.dialects import JsonPath
from runner.errors import EnvironmentFault
from runner.util.text import one_line


class ServerRequest(msgspec.Struct, frozen=True):
    """A POST of JSON, or a GET where there is no body; ``url`` holds no user and password."""

    env: str
    url: str
    body: bytes | None = None

    @property
    def method(self) -> str:
        """What is done at the URL."""
        return "GET" if self.body is None else "POST"

    def fault(self, came_back: str, advice: str) -> EnvironmentFault:
        """The error for a request that ``came_back``, as the rest of a sentence, with what to do about it."""
        sent = "" if self.body is None else f" {one_line(self.body[:1000].decode('utf-8', 'replace'))}"
        asked = f"{self.method} {one_line(self.url)}{sent}"
        return EnvironmentFault(f"{one_line(self.env, 100)}: {asked} {came_back}. {advice}")


class ServerResponse(msgspec.Struct, frozen=True):
    """What a server answered, its body not yet looked at."""

    status: int
    content_type: str
    body: bytes


CHECK_ADDRESS_ADVICE = "This may be another server, or another version of it; check its port or base_url in the profile"
CHECK_LOG_ADVICE = "See the server's own log, and play the task again"

ADVICE_BY_STATUS = {
    401: "The server wants a login; put it into base_url as http://USER:PASSWORD@HOST, or http://:TOKEN@HOST",
    404: CHECK_ADDRESS_ADVICE,
    405: CHECK_ADDRESS_ADVICE,
    422: CHECK_ADDRESS_ADVICE,
}
"""What to do about a status."""
_LARGEST = 1e100
_ANSWER = "ground_truth"
"""What servers call the solution of a task; a text that has it is not shown."""


def decode_response(request: ServerRequest, reply: ServerResponse) -> object:
    """The JSON of a reply that is not an error.

    Raises:
        EnvironmentFault: for each form of an error, and for what is not JSON.
    """
    check_status(request, reply)
    try:
        payload: object = msgspec.json.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        what = f"was answered with {_described(reply)}, which is not JSON ({one_line(str(exc), 100)})"
        raise request.fault(what, CHECK_ADDRESS_ADVICE) from None
    if isinstance(payload, dict) and payload.get("error") is not None:
        text = _quoted(payload["error"])
        raise request.fault(f"was answered with an error{text or ' without a text'}", CHECK_LOG_ADVICE)
    return payload


def check_status(request: ServerRequest, reply: ServerResponse) -> None:
    """Whether a server did what was asked, as far as the status tells.

    Raises:
        EnvironmentFault: with what it says about it.
    """
    if 300 <= reply.status < 400:
        advice = "Redirects are not followed; put the address that it leads to into base_url"
        raise request.fault(f"was redirected (status {reply.status})", advice)
    if not 200 <= reply.status < 300:
        advice = ADVICE_BY_STATUS.get(reply.status, CHECK_LOG_ADVICE)
        raise request.fault(f"was answered with status {reply.status}{_said(reply)}", advice)


class Payload:
    """The JSON of a reply, from which values of the right type are taken."""

    def __init__(self, request: ServerRequest, value: object) -> None:
        """Keep both; ``request`` is for errors."""
        self._request = request
        self._value = value

    def fault(self, came_back: str, advice: str) -> EnvironmentFault:
        """The error for a reply that cannot be used."""
        return self._request.fault(came_back, advice)

    def has(self, place: JsonPath) -> bool:
        """Whether there is something else than null at ``place``."""
        return self._find(place) is not None

    def text(self, place: JsonPath) -> str:
        """The text at ``place``.

        Raises:
            EnvironmentFault: saying what is there instead.
        """
        found = self._find(place)
        if isinstance(found, str):
            return found
        raise self._wrong(place, "a text", found)

    def texts(self, place: JsonPath) -> list[str]:
        """The list of texts at ``place``.

        Raises:
            EnvironmentFault: saying what is there instead.
        """
        found = self._find(place)
        if isinstance(found, list) and all(isinstance(text, str) for text in found):
            return found
        raise self._wrong(place, "a list of texts", found)

    def number(self, place: JsonPath) -> float:
        """The number at ``place``, small enough for sums to stay finite.

        Raises:
            EnvironmentFault: saying what is there instead.
        """
        found = self._find(place)
        if type(found) in (int, float) and abs(found) <= _LARGEST:
            return float(found)
        raise self._wrong(place, f"a number up to {_LARGEST:g}", found)

    def flag(self, place: JsonPath) -> bool:
        """The truth value at ``place``.

        Raises:
            EnvironmentFault: saying what is there instead.
        """
        found = self._find(place)
        if isinstance(found, bool):
            return found
        raise self._wrong(place, "true or false", found)

    def id(self, place: JsonPath) -> int | str:
        """The id of an instance at ``place``.

        Raises:
            EnvironmentFault: saying what is there instead.
        """
        found = self._find(place)
        if (type(found) is int and abs(found) < 2**63) or (isinstance(found, str) and 0 < len(found) <= 200):
            return found
        raise self._wrong(place, "an id", found)

    def _find(self, place: JsonPath) -> Any:  # noqa: ANN401 - whatever a server sent
        found: Any = self._value
        for key in place:
            if isinstance(key, str):
                found = found.get(key) if isinstance(found, dict) else None
            else:
                found = found[key] if isinstance(found, list) and key < len(found) else None
        return found

    def _wrong(self, place: JsonPath, wanted: str, found: object) -> EnvironmentFault:
        """The error for a reply of another shape; it tells types only, as any value may be the task's answer."""
        where = f" as {'.'.join(map(str, place))}" if place else ""
        shape = _kind(self._value)
        if isinstance(self._value, dict):
            fields = ", ".join(one_line(key, 30) for key in list(self._value)[:10])
            shape = f"an object with {fields or 'no fields'}"
        got = f"; it has {_kind(found)} there" if place else ""
        return self.fault(f"was answered with {shape}, which should have {wanted}{where}{got}", CHECK_ADDRESS_ADVICE)


def _kind(value: object) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "nothing")


def _described(reply: ServerResponse) -> str:
    """A reply by its size and type; its text may be part of a task's answer."""
    kind = one_line(reply.content_type.partition(";")[0], 60) or "no declared type"
    return (
        f"status {reply.status} and {len(reply.body)} bytes of {kind}"
        if reply.body
        else f"status {reply.status} and no body"
    )


def _said(reply: ServerResponse) -> str:
    """What an error reply says, in each of the forms that servers have; empty where it is something else."""
    try:
        payload: object = msgspec.json.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        plain = reply.content_type.startswith("text/plain")
        return _quoted(reply.body[:1000].decode("utf-8", "replace")) if plain else ""
    if not isinstance(payload, dict):
        return ""
    detail = payload.get("detail", payload.get("error"))
    if not isinstance(detail, list):
        return _quoted(detail)
    return _quoted("; ".join(_problem(problem) for problem in detail[:3]))


def _problem(problem: object) -> str:
    """One of the problems that a server found in a request's fields, e.g. ``body.game: Field required``."""
    if not isinstance(problem, dict):
        return ""
    where = problem.get("loc")
    path = ".".join(str(part) for part in where[:5]) if isinstance(where, list) else ""
    return f"{path}: {str(problem.get('msg', ''))[:200]}"


def _quoted(said: object) -> str:
    if not isinstance(said, str) or not said:
        return ""
    return " that is not shown, as it may hold the answer" if _ANSWER in said.lower() else f' "{one_line(said)}"'

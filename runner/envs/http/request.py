"""One request to an environment's server, and the error that tells what became of it."""

from __future__ import annotations

import msgspec

from runner.errors import EnvironmentFault
from runner.util.text import one_line


class Request(msgspec.Struct, frozen=True):
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


class Reply(msgspec.Struct, frozen=True):
    """What a server answered, its body not yet looked at."""

    status: int
    content_type: str
    body: bytes

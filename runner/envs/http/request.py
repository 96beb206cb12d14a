"""One request to an environment's server, and the error that tells what became of it."""

from __future__ import annotations

import msgspec

from runner.errors import EnvironmentFault
from runner.text import one_line


class Request(msgspec.Struct, frozen=True):
    """A POST of JSON; ``url`` holds no user and password."""

    env: str
    url: str
    body: bytes

    def fault(self, came_back: str, advice: str) -> EnvironmentFault:
        """The error for a request that ``came_back``, as the rest of a sentence, with what to do about it."""
        asked = f"POST {one_line(self.url)} {one_line(self.body[:1000].decode('utf-8', 'replace'))}"
        return EnvironmentFault(f"{one_line(self.env, 100)}: {asked} {came_back}. {advice}")


class Reply(msgspec.Struct, frozen=True):
    """What a server answered, its body not yet looked at."""

    status: int
    content_type: str
    body: bytes

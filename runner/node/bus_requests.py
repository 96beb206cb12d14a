"""The control requests of one bus: which operations it may request, and the record of the last activity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.node.control_requests import find_problem, reject
from runner.node.handlers import ControlHandler


@dataclass(frozen=True)
class BusRequests:
    """Handles the requests of one bus, as ``runner.bus.request_server.RequestHandler`` describes it.

    Attributes:
        commands: whether the bus may request operations other than ``health``.
        on_request: called for each valid request.
    """

    handler: ControlHandler
    commands: bool
    on_request: Callable[[], None]

    def find_problem(self, payload: bytes) -> BaseException | None:
        """Return why a request is invalid, or None."""
        return find_problem(payload)

    def reject(self, payload: bytes, problem: BaseException | None) -> bytes:
        """Return the reply to an invalid request, or to one of too many requests."""
        return reject(payload, problem)

    def handle(self, payload: bytes) -> bytes:
        """Return the reply to a valid request."""
        self.on_request()
        return self.handler.handle(payload, commands=self.commands)

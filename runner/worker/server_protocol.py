"""The requests that a fork server gets from its driver, and its replies."""

from __future__ import annotations

import array
import os
import socket
from typing import Literal, TypeAlias

import msgspec

from runner.worker.channel import read_exactly
from runner.worker.frames import LENGTH_BYTES

StartMode: TypeAlias = Literal["fork", "spawn"]

_N_DESCRIPTORS = 2


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="t"):
    pass


class StartWorker(_Message, frozen=True):
    """Start a worker; the descriptors of its channel and of its log come with the message.

    ``folder`` is its working directory, and ``path`` its ``sys.path``.
    """

    name: str
    environ: list[tuple[bytes, bytes]]
    folder: bytes
    path: list[bytes]


class KillWorker(_Message, frozen=True):
    """Kill a worker and the processes that it has started."""

    pid: int


class FindExitCode(_Message, frozen=True):
    pid: int


ServerRequest: TypeAlias = StartWorker | KillWorker | FindExitCode


class ServerReply(msgspec.Struct, frozen=True):
    """Reply to each request.

    Attributes:
        pid: the worker; None if it could not be started, or if this server did not start it.
        exit_code: its exit code, or the negative number of the signal that ended it; None if it runs or is unknown.
        error_number: ``errno`` of the failed start.
    """

    pid: int | None = None
    exit_code: int | None = None
    error_number: int = 0


def send_request(control: socket.socket, request: ServerRequest, *descriptors: int) -> None:
    """Send a request, and descriptors with it; raises ``OSError`` if the fork server has ended."""
    data = msgspec.msgpack.encode(request)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    control.sendmsg([len(data).to_bytes(LENGTH_BYTES, "big")], rights)
    control.sendall(data)


def receive(control: socket.socket) -> tuple[bytes | None, list[int]]:
    """Wait for a request; return it, encoded, and the descriptors that came with it; None at the channel's end."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    received = array.array("i")
    space = socket.CMSG_SPACE(_N_DESCRIPTORS * received.itemsize)
    length, rights, _, _ = control.recvmsg(LENGTH_BYTES, space, flags)
    for _, kind, data in rights:
        if kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    for descriptor in received:
        os.set_inheritable(descriptor, False)
    if len(length) < LENGTH_BYTES:
        return None, []
    return read_exactly(control, int.from_bytes(length, "big")), list(received)

"""Start of worker processes: ``server CONTROL MODE`` is a fork server, ``worker CHANNEL NAME PATH…`` one worker."""

from __future__ import annotations

import socket
import sys

from runner.worker.fork_server import run_worker_process, serve


def main(role: str, descriptor: str, argument: str, *path: str) -> None:
    if role == "worker":
        run_worker_process(int(descriptor), argument, list(path))
    serve(socket.socket(fileno=int(descriptor)), "fork" if argument == "fork" else "spawn")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A stand-in for ARE's process that speaks its protocol and misbehaves on request.

It is started like an interpreter with ARE: ``PROGRAM -I FILE`` lists no scenarios, but a package that adds some, and
``PROGRAM -s FILE FD SCRATCH MEMORY LIMIT`` serves. The scenario selects what an episode does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from runner.util.fork_server import ForkServer
from runner.util.framing import read_frame, send_frame

ESCAPE = "\x1b[31mred\x07"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "Notes__add",
            "description": "Add a note.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "pinned": {"type": "boolean", "default": False}},
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    }
]
ADD = {"name": "Notes__add", "arguments": {"text": "milk"}}
DETAILS: dict[str, Any] = {"success": True, "rationale": None, "exception": None, "judge": "scenario", "events": []}


def write_program(folder: Path, start: str = "normal") -> Path:
    """Write an executable file that stands for the interpreter; ``start`` selects how the process starts."""
    program = folder / f"python-{start}"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__)}" {start} "$@"\n')
    program.chmod(0o755)
    return program


def send(connection: socket.socket, frame: dict[str, Any]) -> None:
    send_frame(connection, json.dumps(frame).encode())


def receive(connection: socket.socket) -> dict[str, Any]:
    if (data := read_frame(connection)) is None:
        os._exit(0)
    frame: dict[str, Any] = json.loads(data)
    return frame


def stepped(*parts: tuple[str, str], done: bool = False, tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    oracle = None if done else ADD
    return {"type": "stepped", "parts": parts, "done": done, "reward": float(done), "oracle": oracle, "tools": tools}


def answer(connection: socket.socket, request: dict[str, Any], scenario: str) -> None:
    """Answer one request as the scenario demands; ``late-X`` does X at the first call instead of at the reset."""
    is_reset = request["type"] == "reset"
    fault = scenario.removeprefix("late-") if is_reset != scenario.startswith("late-") else ""
    match fault:
        case "hang":
            signal.pause()
        case "slow":
            time.sleep(0.3)
        case "dies":
            os._exit(3)
        case "half":
            connection.sendall(struct.pack(">I", 100) + b"{")
            os._exit(0)
        case "garbage":
            connection.sendall(struct.pack(">I", 5) + b"\xff\xfe{}x")
            return
        case "huge":
            connection.sendall(struct.pack(">I", 1 << 31))
            return
        case "wrong":
            send(connection, {"type": "evaluated", "details": {}})
            return
        case "judge":
            send(connection, {"type": "failed", "kind": "judge", "message": "the judge has no model"})
            return
        case "memory":
            send(connection, {"type": "failed", "kind": "memory", "message": "more than 64 MiB are needed"})
            return
    if scenario == "prints":
        sys.stdout.write(f"{ESCAPE} from the process\n")
        sys.stdout.flush()
        os.write(2, b"to standard error\n")
    if is_reset:
        send(connection, stepped(("environment", f"Scenario {scenario}"), ("user", "Add milk."), tools=TOOLS))
    elif request["type"] == "call":
        note = ("notification", f"Notes: {request['arguments'].get('text')}")
        send(connection, stepped(("result", str(os.getpid())), note, ("environment", "The end"), done=True))
    elif scenario == "judged":
        send(connection, {"type": "evaluated", "details": judge(connection)})
    else:
        success = None if scenario == "no-verdict" else scenario != "unsolved"
        exception = "RuntimeError: the judge has no model" if scenario == "no-verdict" else None
        send(connection, {"type": "evaluated", "details": {**DETAILS, "success": success, "exception": exception}})


def ask(connection: socket.socket, question: str) -> dict[str, Any]:
    send(connection, {"type": "ask", "messages": [{"role": "user", "content": question}]})
    return receive(connection)


def judge(connection: socket.socket) -> dict[str, Any]:
    """Ask the judge's model twice; the scenario is solved if the second answer is yes."""
    ask(connection, "Was milk added?")
    answer = ask(connection, "Sure?")
    success = None if answer["text"] is None else answer["text"] == "yes"
    return {**DETAILS, "judge": "graph per event", "success": success, "exception": answer["problem"] or None}


def play(_: bytes, descriptors: list[int]) -> NoReturn:
    connection, scenario = socket.socket(fileno=descriptors[0]), ""
    while True:
        request = receive(connection)
        scenario = request.get("scenario", scenario)
        answer(connection, request, scenario)


def serve(control: socket.socket, start: str) -> None:
    match start:
        case "silent":
            time.sleep(600)
        case "dead":
            sys.exit("no module named are")
        case "garbage":
            control.sendall(b"Traceback (most recent call last)")
            time.sleep(600)
        case "failed":
            send(control, {"type": "failed", "kind": "import", "message": "ModuleNotFoundError: No module named 'are'"})
    send(control, {"type": "ready", "version": "0", "scenarios": ["fine"], "pid": os.getpid()})
    if start == "never-forks":
        signal.pause()
    ForkServer(control, play).run()


if __name__ == "__main__":
    if "-I" in sys.argv:
        scan = {"installed": True, "version": "0", "scenarios": [], "is_complete": False}
        sys.stdout.write(json.dumps(scan))
    else:
        serve(socket.socket(fileno=int(sys.argv[4])), sys.argv[1])
        shutil.rmtree(sys.argv[5], ignore_errors=True)

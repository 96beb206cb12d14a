"""A client of the Model Context Protocol without a library, with the process that it calls."""

from __future__ import annotations

import json
import subprocess
from types import TracebackType
from typing import Any, Self

from tests.support.node_process import COMMAND, clean_environ


class McpProcess:
    """A process that serves the protocol on its standard streams."""

    def __init__(self, *options: str, **environ: str) -> None:
        pipe, env = subprocess.PIPE, clean_environ(**environ)
        self.process = subprocess.Popen([COMMAND, "mcp", *options], text=True, env=env, stdin=pipe, stdout=pipe)
        self._n = 0

    def request(self, method: str, **parameters: Any) -> Any:  # noqa: ANN401 - any JSON
        self._n += 1
        self.send(method, parameters, id=self._n)
        answer = self.read()
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", self._n)
        return answer

    def send(self, method: str, parameters: object, **id: object) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters, **id}))

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read(self) -> Any:  # noqa: ANN401 - any JSON
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def call(self, tool: str, **arguments: Any) -> Any:  # noqa: ANN401 - any JSON
        result = self.request("tools/call", name=tool, arguments=arguments)["result"]
        document = json.loads(result["content"][0]["text"])
        assert result["isError"] is not document["ok"]
        return document

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> int:
        self.process.communicate(timeout=30)
        return self.process.returncode

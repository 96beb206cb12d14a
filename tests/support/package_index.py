"""A package index on this machine: serves small wheels and holds back those that a test has not released."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

WAIT_S = 60.0


def make_wheel(name: str) -> bytes:
    """Return a wheel of version 1.0 with one empty module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)  # its time is fixed
    return buffer.getvalue()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """Ignore a client that has gone."""


def make_lock(*names: str) -> str:
    """Return a lock file with the wheels of ``make_wheel`` and their hashes."""
    hashes = {name: hashlib.sha256(make_wheel(name)).hexdigest() for name in names}
    return "".join(f"{name}==1.0 \\\n    --hash=sha256:{digest}\n" for name, digest in hashes.items())


class PackageIndex:
    """A package index; use as a context manager.

    Args:
        names: names of the packages; each has the version 1.0.
        held: names of the packages whose pages wait for ``release``.
    """

    def __init__(self, *names: str, held: tuple[str, ...] = ()) -> None:
        self.wheels = {name: make_wheel(name) for name in names}
        self._held = {name: threading.Event() for name in held}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/simple/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(*self._held)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def release(self, *names: str) -> None:
        for name in names:
            self._held[name].set()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        folder, _, name = request.path.strip("/").partition("/")
        if folder == "simple" and name in self.wheels:
            if name in self._held:
                self._held[name].wait(WAIT_S)
            file = f"{name}-1.0-py3-none-any.whl"
            self._send(request, "text/html", f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode())
        elif folder == "files" and (name := name.partition("-")[0]) in self.wheels:
            self._send(request, "application/octet-stream", self.wheels[name])
        else:
            request.send_error(404)

    def _send(self, request: BaseHTTPRequestHandler, kind: str, body: bytes) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

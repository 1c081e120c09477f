"""A real schema registry for tests: Apicurio with Confluent's API, in memory, on a free port.

What a registry behind a gateway asks
for, TLS and credentials, is asked for by :class:`Gateway`, in front of the real one.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import shutil
import signal
import ssl
import subprocess
import tarfile
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.support.components import (
    CACHE,
    Component,
    free_port,
    no_java,
    require,
    run_maven,
    server_java,
)

#: The newest that runs on Java 17.
REGISTRY_VERSION = "3.0.9"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}:tar.gz:all"
PR_SET_PDEATHSIG = 1
START_S = 200.0


def _fetch(home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as made:
        run_maven("dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={made}")
        [archive] = Path(made).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(home, filter="data")


REGISTRY = Component(
    "registry",
    "the schema registry, by Maven,",
    home=lambda: f"schema-registry-{REGISTRY_VERSION}",
    make=_fetch,
    missing=no_java,
)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Registry:
    """One registry process. ``url`` is the address of its Confluent API."""

    def __init__(self) -> None:
        [self._jar] = REGISTRY.path().rglob("apicurio-registry-app-*-runner.jar")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        self._folder = tempfile.TemporaryDirectory(prefix="registry-")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        environment = {
            **os.environ,
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self.port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(free_port()),
            "APICURIO_STORAGE_KIND": "sql",  # an in-memory database
        }
        log = Path(self._folder.name, "log")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*server_java("384m"), "-jar", str(self._jar)],
                cwd=self._folder.name,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the child only sets a flag
            )
        give_up = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.__exit__()
                raise RuntimeError(f"the registry did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_S)
        self._folder.cleanup()

    def _answers(self) -> bool:
        try:
            return self.call("GET", "/subjects")[0] == 200
        except OSError:
            return False

    def call(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        """Status and body of an answer of the Confluent API."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        try:
            headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
            connection.request(method, "/apis/ccompat/v7" + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    require("openssl", shutil.which("openssl") is not None)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    # Not every library takes the certificate of an authority for a server's.
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subject += ["-addext", "basicConstraints=critical,CA:FALSE"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    return certificate, key


class Gateway:
    """Stands before a registry and asks for an Authorization header, over TLS if it has a
    certificate."""

    def __init__(
        self, registry: Registry, authorization: str, certificate: tuple[Path, Path] | None = None
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, answer = 401, b'{"error_code":401,"message":"no"}'
                if self.headers.get("Authorization") == authorization:
                    path = self.path.removeprefix("/apis/ccompat/v7")
                    status, answer = registry.call("POST", path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/apis/ccompat/v7"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

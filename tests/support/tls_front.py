"""A front of a server that has no TLS: it speaks TLS for it, or lies, or cuts the connection.

Protocols that begin in plain text (PostgreSQL, MySQL, NATS) are led over to TLS as their servers
do it.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.components import require

_RESET = struct.pack("ii", 1, 0)
_CLIENT_SSL = 0x0800


class Certificates:
    """A server's certificate for 127.0.0.1, one for another address, and one that is signed by
    nobody known; the first two are their own authorities, in one file."""

    def __init__(self, folder: Path) -> None:
        require("openssl", shutil.which("openssl") is not None)
        self.folder = folder
        for name, address in (
            ("right", "127.0.0.1"),
            ("other", "127.0.0.9"),
            ("unknown", "127.0.0.1"),
        ):
            command = (
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
                f"-keyout {name}.key -out {name}.pem -subj /CN={name} "
                f"-addext subjectAltName=IP:{address}"
            )
            subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
        self.authorities = folder / "authorities.pem"
        self.authorities.write_text(
            (folder / "right.pem").read_text() + (folder / "other.pem").read_text()
        )

    def context(self, name: str) -> ssl.SSLContext:
        """The server's side of one of them."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context


class TlsFront:
    """Listens on ``port``; ``upstream`` is the server's, None for a server that says nothing.

    Without a ``context`` there is no TLS: all goes on as it is. With ``cut`` the connection ends
    when the client's handshake has begun. ``heard`` is what came in plain text.
    """

    def __init__(
        self,
        upstream: int | None,
        protocol: str = "",
        context: ssl.SSLContext | None = None,
        *,
        cut: bool = False,
    ) -> None:
        self.upstream = upstream
        self.context = context
        self.cut_handshake = cut
        self.heard = bytearray()
        self._begin = {"postgres": _postgres, "nats": _nats, "mysql": _mysql}.get(
            protocol, _at_once
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *reason: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """End all connections that are open, as a network does that is gone."""
        for one in self._open:
            _reset(one)
        self._open.clear()

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        try:
            if self.upstream is not None:
                server = socket.create_connection(("127.0.0.1", self.upstream))
                self._open.append(server)
            if self.context is not None:
                finish = self._begin(client, server)
                if self.cut_handshake:
                    client.recv(1)
                    _reset(client)
                    return
                client = self.context.wrap_socket(client, server_side=True)
                self._open.append(client)
                finish(client)
            if server is None:
                self._listen(client)
                return
            self._start(_pump, server, client)
            self._pass_on(client, server)
        except (OSError, EOFError):
            pass
        finally:
            for one in (client, server):
                if one is not None:
                    _reset(one)

    def _listen(self, client: socket.socket) -> None:
        """Hear what a client says first, which no server without TLS understands."""
        data = client.recv(65536)
        if self.context is None:
            self.heard += data

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(65536):
            if self.context is None:
                self.heard += data
            server.sendall(data)


def _reset(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := source.recv(count - len(data))):
            raise EOFError
        data += part
    return data


def _nothing(_: socket.socket) -> None:
    pass


Begin = Callable[[socket.socket], None]


def _at_once(client: socket.socket, server: socket.socket | None) -> Begin:
    del client, server
    return _nothing


def _postgres(client: socket.socket, server: socket.socket | None) -> Begin:
    del server
    _exactly(client, 8)
    client.sendall(b"S")
    return _nothing


def _nats(client: socket.socket, server: socket.socket | None) -> Begin:
    assert server is not None
    line = b""
    while not line.endswith(b"\r\n"):
        line += _exactly(server, 1)
    greeting = {**json.loads(line.partition(b" ")[2]), "tls_required": True}
    client.sendall(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
    return _nothing


def _mysql(client: socket.socket, server: socket.socket | None) -> Begin:
    """Offer TLS in the greeting, and take away what the server must not see of it."""
    assert server is not None
    greeting = bytearray(_packet(server))
    # The version's text, the connection's number, eight bytes of salt and a zero stand before.
    at = greeting.index(0, 5) + 1 + 4 + 8 + 1
    flags = int.from_bytes(greeting[at : at + 2], "little") | _CLIENT_SSL
    greeting[at : at + 2] = flags.to_bytes(2, "little")
    client.sendall(greeting)
    _packet(client)  # which asks for TLS

    def finish(encrypted: socket.socket) -> None:
        answer = bytearray(_packet(encrypted))
        flags = int.from_bytes(answer[4:6], "little") & ~_CLIENT_SSL
        answer[4:6] = flags.to_bytes(2, "little")
        while True:
            answer[3] -= 1  # there was one packet less for the server
            server.sendall(answer)
            said = bytearray(_packet(server))
            said[3] += 1
            encrypted.sendall(said)
            if said[4] in (0x00, 0xFF):
                return
            answer = bytearray(_packet(encrypted))

    return finish


def _packet(source: socket.socket) -> bytes:
    head = _exactly(source, 4)
    return head + _exactly(source, int.from_bytes(head[:3], "little"))

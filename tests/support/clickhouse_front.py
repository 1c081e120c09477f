"""ClickHouse's engine behind an HTTP interface like that of its server: ``PORT FOLDER``.

The engine is chdb's, which is ClickHouse's own in one process: its SQL, types, formats, engines of
tables, errors and their names are real. This program is what stands for the server: it takes
queries as the documentation of the HTTP interface has them, with settings in the URL, one at a
time, checks a user, and answers with ClickHouse's headers. So sessions, quotas, grants, replicas,
limits of requests, answers that begin before a query ends, and several queries at the same time are
not tried with it.

It fails on command, where the engine alone would not: POST /-/faults with a JSON object. ``name``
and ``code`` are an error for statements that begin with ``of``; ``tear`` is how many bytes of an
answer come before the error does; ``drop`` closes the connection behind a statement instead of
answering it; an empty object ends that.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

USERS = {"default": "", "tailer": "s3cret"}
_FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*$")
_CODE = re.compile(r"Code: (\d+)\.")
_NO_SETTINGS = ("query", "query_id", "wait_end_of_query")
_LOGIN_TEXT = (
    "Code: 516. DB::Exception: {}: Authentication failed: password is incorrect, or there is no "
    "user with such name. (AUTHENTICATION_FAILED) (version 26.9.2.1)"
)


class Front(ThreadingHTTPServer):
    """The engine, and the faults that were asked for."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, port: int, folder: str) -> None:
        self.session = Session(folder)
        self.lock = threading.Lock()
        self.faults: dict[str, Any] = {}
        self.applied: dict[str, str] = {}
        super().__init__(("127.0.0.1", port), Handler)

    def run(self, statement: str, data: bytes, settings: dict[str, str]) -> bytes:
        """Run a statement; return its result. Raises ``RuntimeError`` with ClickHouse's text."""
        with self.lock:
            self._apply(settings)
            if statement.startswith("SET "):
                self.applied.clear()
            found = _FORMAT.search(statement)
            if statement.startswith("INSERT") and found is not None:
                with NamedTemporaryFile() as file:
                    file.write(data)
                    file.flush()
                    infile = f" FROM INFILE '{file.name}' COMPRESSION 'none'"
                    self.session.query(statement[: found.start()] + infile + found[0])
                return b""
            plain = statement[: found.start()] if found else statement
            return bytes(self.session.query(plain, found[1] if found else "TabSeparated").bytes())

    def _apply(self, settings: dict[str, str]) -> None:
        """Have the settings of a request, and no others: each that changes is a query."""
        for name in self.applied.keys() - settings.keys():
            self.session.query(f"SET {name} = DEFAULT")
            del self.applied[name]
        for name, value in settings.items():
            if self.applied.get(name) != value:
                self.session.query(f"SET {name} = '{value}'")
                self.applied[name] = value


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    #: As the server has it: else each answer on a kept connection waits for a client's late ACK.
    disable_nagle_algorithm = True
    server: Front

    def do_GET(self) -> None:  # the name is the library's
        self._answer(200, b"Ok.\n", {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        if url.path == "/-/faults":
            self.server.faults = json.loads(body)
            self._answer(200, b"", {})
            return
        query = dict(parse_qsl(url.query))
        user = self.headers.get("X-ClickHouse-User", "default")
        if USERS.get(user) != self.headers.get("X-ClickHouse-Key", ""):
            self._fail(403, "516", _LOGIN_TEXT.format(user))
            return
        statement, data = query.get("query", ""), body
        if not statement:
            end = body.find(b"\n") if body.startswith(b"INSERT") else -1
            statement = (body if end < 0 else body[:end]).decode()
            data = b"" if end < 0 else body[end + 1 :]
        faults = (
            self.server.faults if statement.startswith(self.server.faults.get("of", "")) else {}
        )
        if "name" in faults and "tear" not in faults:
            text = f"Code: {faults['code']}. DB::Exception: as it happens. ({faults['name']})"
            self._fail(500, str(faults["code"]), text)
            return
        settings = {name: value for name, value in query.items() if name not in _NO_SETTINGS}
        try:
            found = self.server.run(statement, data, settings)
        except Exception as e:  # noqa: BLE001  # the library's own, with the engine's text
            code = _CODE.search(str(e))
            self._fail(500, code[1] if code else "1002", str(e))
            return
        if faults.get("drop"):
            self.close_connection = True
            return
        if "tear" in faults:
            found = found[: faults["tear"]] + b"Code: 241. DB::Exception: (MEMORY_LIMIT_EXCEEDED)"
        self._answer(200, found, {"X-ClickHouse-Query-Id": query.get("query_id", "")})

    def _fail(self, status: int, code: str, text: str) -> None:
        self._answer(status, text.encode(), {"X-ClickHouse-Exception-Code": code})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(body), 65536):
            part = body[at : at + 65536]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")


if __name__ == "__main__":
    Front(int(sys.argv[1]), sys.argv[2]).serve_forever()

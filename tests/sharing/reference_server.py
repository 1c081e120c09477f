"""A sharing server for tests, written from the protocol's text: both response formats, all of its
endpoints, and the faults that servers and networks have.

It shares no code with the server of this project, and is plain on purpose: one thread per request,
answers built in memory.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.sharing.reference_answers import Answers, Refusal, Request
from tests.sharing.reference_log import file_id

TOKEN = "the-token"


class ReferenceServer(Answers):
    """Shares ``tables`` by (share, schema, table). ``token`` is what lets one in."""

    def __init__(
        self,
        tables: dict[tuple[str, str, str], Path],
        token: str = TOKEN,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(tables)
        self.token = token
        self.requests: list[Request] = []
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.base = f"http{'s' * (tls is not None)}://127.0.0.1:{self.http.server_port}"
        self.files = f"{self.base}/files"

    @property
    def endpoint(self) -> str:
        """The endpoint of profiles."""
        return f"{self.base}/prefix"

    def profile(self, folder: Path, **more: Any) -> Path:
        """A profile file for this server."""
        file = folder / "test.share"
        content = {
            "shareCredentialsVersion": 1,
            "endpoint": self.endpoint,
            "bearerToken": self.token,
        }
        file.write_text(json.dumps({**content, **more}))
        return file

    def seen(self, pattern: str) -> list[Request]:
        """The requests whose path matches."""
        return [r for r in self.requests if re.search(pattern, r.path)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(_Handler):
            reference = server

        return Handler


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    reference: ReferenceServer
    protocol_version = "HTTP/1.1"
    # Header and body in one packet: the second of two would wait for the other side's word.
    disable_nagle_algorithm = True
    wbufsize = 65_536

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        parts = urlsplit(self.path)
        if parts.path.startswith("/files/"):
            self._file(parse_qs(parts.query).get("X-Amz-Signature", [""])[0])
            return
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        path = parts.path.removeprefix("/prefix")
        try:
            body = json.loads(raw) if raw and self.command == "POST" else None
            capabilities = self.headers.get("delta-sharing-capabilities", "")
            request = Request(
                self.command, path, query, capabilities, body, self.headers.get("Authorization", "")
            )
            self.reference.requests.append(request)
            self._refuse_as_told(request)
            if request.authorization != f"Bearer {self.reference.token}":
                raise Refusal(401, "UNAUTHENTICATED", "the token is not known")
            self._route(request, [unquote(p) for p in path.strip("/").split("/")])
        except _Done:
            pass
        except Refusal as e:
            self._json(e.status, {"errorCode": e.code, "message": str(e)})

    def _refuse_as_told(self, request: Request) -> None:
        with self.reference.lock:
            refuse = self.reference.faults.refuse
            for entry in refuse:
                pattern, status, headers = entry
                if re.search(pattern, request.path):
                    refuse.remove(entry)
                    self._json(status, {"errorCode": "TOLD", "message": "as told"}, headers)
                    raise _Done

    def _route(self, request: Request, parts: list[str]) -> None:
        server = self.reference
        server.answer.urls = {}
        names = [name for name, _ in server.tables.values()]
        match parts:
            case ["shares"]:
                shares = sorted({share for share, _, _ in names})
                self._json(200, server.page([{"name": s} for s in shares], request.query))
            case ["shares", share]:
                if share.lower() not in {s.lower() for s, _, _ in names}:
                    raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"no share {share}")
                self._json(200, {"share": {"name": share}})
            case ["shares", share, "schemas"]:
                schemas = sorted({c for s, c, _ in names if s.lower() == share.lower()})
                items = [{"name": c, "share": share} for c in schemas]
                self._json(200, server.page(items, request.query))
            case ["shares", share, "schemas", schema, "tables"]:
                self._tables(names, request, lambda s, c: (s, c) == (share.lower(), schema.lower()))
            case ["shares", share, "all-tables"]:
                self._tables(names, request, lambda s, _: s == share.lower())
            case ["shares", share, "schemas", schema, "tables", table, *rest]:
                self._table([share, schema, table], rest, request)
            case _:
                raise Refusal(404, "NOT_FOUND", "no such endpoint")

    def _tables(self, names: list[Any], request: Request, fits: Callable[[str, str], bool]) -> None:
        items = [
            {"name": table, "schema": schema, "share": share}
            for share, schema, table in names
            if fits(share.lower(), schema.lower())
        ]
        self._json(200, self.reference.page(items, request.query))

    def _table(self, name: list[str], rest: list[str], request: Request) -> None:
        server, table = self.reference, self.reference.table(name)
        match self.command, rest:
            case ("GET", ["version"]) if not server.faults.only_head:
                self._version(server.version(name, request.query))
            case "HEAD", []:
                self._version(server.version(name, request.query))
            case "GET", ["metadata"]:
                form = server.form(table, table.version, request.capabilities)
                lines = server.head(table, table.version, form, stamped=False)
                self._lines(request, table.version, form, lines)
            case "POST", ["query"]:
                body = request.body or {}
                self._lines(request, *server.query(table, request.capabilities, body))
            case "GET", ["changes"]:
                self._lines(request, *server.changes(table, request.capabilities, request.query))
            case _:
                raise Refusal(404, "NOT_FOUND", "no such endpoint")

    def _version(self, version: int) -> None:
        self.send_response(200)
        self.send_header("Delta-Table-Version", str(version))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _lines(self, request: Request, version: int, form: str, lines: list[Any]) -> None:
        """An NDJSON answer, whole or as the faults have it."""
        faults = self.reference.faults
        promised = faults.end_of_stream and "includeendstreamaction=true" in request.capabilities
        end: dict[str, Any] = {"minUrlExpirationTimestamp": 4_102_444_800_000}
        if (request.body or {}).get("includeRefreshToken"):
            end["refreshToken"] = f"refresh-{version}"
        end |= faults.end_error or {}
        if faults.files_per_page and len(lines) > 2:
            token = (request.body or request.query).get("pageToken")
            start = int(token or 0)
            files = lines[2:]
            lines = lines[:2] if start == 0 else []
            lines += files[start : start + faults.files_per_page]
            if start + faults.files_per_page < len(files):
                end["nextPageToken"] = str(start + faults.files_per_page)
        if promised and not faults.omit_end:
            lines = [*lines, {"endStreamAction": end}]
        texts = [json.dumps(line).encode() + b"\n" for line in lines]
        body = b"".join(texts)
        sent = body
        if faults.cut_after_lines is not None:
            sent = b"".join(texts[: faults.cut_after_lines])
            sent = sent[:-7] if faults.cut_within_line else sent
            body = body if faults.cut_connection else sent
        said = {"delta": "parquet", "parquet": "delta"}[form] if faults.wrong_format else form
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson; charset=utf-8")
        self.send_header("Delta-Table-Version", str(version))
        if not faults.only_parquet:
            more = ";includeendstreamaction=true" if promised else ""
            self.send_header("delta-sharing-capabilities", f"responseformat={said}{more}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(sent)
        if len(sent) < len(body):
            self.close_connection = True

    def _file(self, key: str) -> None:
        """A file's bytes, or the range that was asked for."""
        server = self.reference
        with server.lock:
            file, left = server.urls.get(key, (Path(), 0))
            server.urls[key] = file, left - 1
        status = server.faults.file_status
        if left <= 0:
            status = 403
        if status is not None or not file.is_file():
            self._json(status or 404, {})
            return
        data = file.read_bytes()
        etag = f'"{left if server.faults.changing_etag else file_id(str(file))}"'
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None or not server.faults.byte_ranges:
            self._bytes(200, data, {"ETag": etag})
            return
        if match[1] == "":
            first, last = max(0, len(data) - int(match[2])), len(data) - 1
        else:
            first, last = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
        part = data[first : last + 1]
        if not part:
            self._bytes(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        span = f"bytes {first}-{last}/{len(data)}"
        self._bytes(206, part, {"Content-Range": span, "ETag": etag})

    def _bytes(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class _Done(Refusal):
    """The answer has been given."""

    def __init__(self) -> None:
        super().__init__(0, "", "")


@contextmanager
def serving(tables: dict[tuple[str, str, str], Path], **more: Any) -> Iterator[ReferenceServer]:
    """A reference server while the block runs."""
    server = ReferenceServer(tables, **more)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()

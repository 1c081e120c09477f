"""A Unity Catalog server for tests, written from the API's description: what readers and writers of
Delta tables ask of it, and the lies of servers that are late, stale or away.

It shares no code with the client of this project.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "catalog-token-1"
CLIENT = ("feed-client", "feed-secret-7")
API = "/api/2.1/unity-catalog"
MANAGED = "delta.feature.catalogManaged"
MANAGED_BEFORE = "delta.feature.catalogOwned-preview"
#: The API bounds what is ratified and not published.
UNPUBLISHED_MAX = 100


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass
class Entry:
    """A table. ``commits`` are ratified and not known to be published; ``latest`` is the newest
    version that is ratified."""

    location: str
    properties: dict[str, str] = field(default_factory=dict)
    table_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    form: str = "DELTA"
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)
    latest: int = 0

    def take_features(self, protocol: dict[str, Any]) -> None:
        """Have the features of a protocol among the properties."""
        for feature in protocol["reader-features"]:
            self.properties[f"delta.feature.{feature}"] = "supported"

    def loaded(self, latest: int | None = None) -> dict[str, Any]:
        """The answer to a load, as it was when ``latest`` was the newest version."""
        newest = self.latest if latest is None else latest
        metadata = {
            "etag": f"etag-{self.latest}", "table-type": "MANAGED", "table-uuid": self.table_id,
            "location": self.location, "created-time": 1, "updated-time": 1,
            "columns": {"type": "struct", "fields": []}, "properties": self.properties,
        }  # fmt: skip
        answer: dict[str, Any] = {"metadata": metadata}
        if self.properties.keys() & {MANAGED, MANAGED_BEFORE}:
            commits = [one for version, one in self.commits.items() if version <= newest]
            answer["commits"] = sorted(commits, key=lambda one: -int(one["version"]))
            answer["latest-table-version"] = newest
        return answer


class CatalogServer:
    """A catalog ``main`` with the schema ``sales``. What it vends for a table is in ``vended``, or
    what ``vends`` returns for the table's location.

    ``away`` answers that often with 503 (None: always); ``late`` leaves so many of the newest
    versions out, and ``frozen`` has the answers to loads that are given in place of the truth. New
    tables are below the address ``root``.
    """

    def __init__(self, folder: Path) -> None:
        self.root = f"file://{folder}"
        self.lock = threading.RLock()
        self.schemas = {"sales": {}, "empty": {}}  # type: dict[str, dict[str, Entry]]
        self.tokens = {TOKEN}
        self.token_life_s = 3600.0
        self.forbidden: set[str] = set()
        self.vended: dict[str, Callable[[], list[dict[str, Any]]]] = {}
        self.vends: Callable[[str], list[dict[str, Any]]] = lambda _location: []
        self.has_delta_api = True
        self.page_items = 50
        self.away: int | None = 0
        self.late = 0
        self.frozen: dict[str, dict[str, Any]] = {}
        self.staging: dict[str, Entry] = {}
        self.requests: list[str] = []
        self.http = _Server(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.http.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(_Handler):
            catalog = server

        return Handler

    def table(self, name: str, location: str, **properties: str) -> Entry:
        """Register a table that is there."""
        entry = Entry(location, properties)
        self.schemas["sales"][name] = entry
        return entry

    def seen(self, text: str) -> int:
        """How many requests have a text in their path."""
        return sum(text in request for request in self.requests)

    # What is asked

    def answer(
        self, method: str, path: str, query: dict[str, str], body: Any, authorization: str
    ) -> Any:
        """The answer to a request below the API's base."""
        if authorization.removeprefix("Bearer ") not in self.tokens:
            raise Refused(401, "NotAuthorizedException", "the token is not known or has expired")
        if self.away is None or self.away > 0:
            self.away = None if self.away is None else self.away - 1
            raise Refused(503, "InternalServerErrorException", "the catalog is away")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match [method, *parts]:
            case ["GET", "catalogs", name]:
                return self._catalog(name)
            case ["GET", "schemas"]:
                self._catalog(_of(query, "catalog_name"))
                return self._page("schemas", [{"name": name} for name in self.schemas], query)
            case ["GET", "schemas", name]:
                catalog, schema = _parts(name, 2)
                self._catalog(catalog)
                self._schema(schema)
                return {"name": name}
            case ["GET", "tables"]:
                self._catalog(_of(query, "catalog_name"))
                tables = self._schema(_of(query, "schema_name"))
                return self._page("tables", [_listed(n, t) for n, t in tables.items()], query)
            case [_, "delta", "v1", "catalogs", catalog, "schemas", schema, *rest]:
                if not self.has_delta_api:
                    raise Refused(404, "ENDPOINT_NOT_FOUND", "no such path")
                return self._delta(method, (catalog, schema), rest, body or query)
        raise Refused(404, "ENDPOINT_NOT_FOUND", "no such path")

    def _delta(self, method: str, schema: tuple[str, str], rest: list[str], body: Any) -> Any:
        match [method, *rest]:
            case ["POST", "staging-tables"]:
                entry = Entry(f"{self.root}/table-{uuid.uuid4()}")
                self.staging[entry.location] = entry
                return {
                    "table-id": entry.table_id, "table-type": "MANAGED",
                    "location": entry.location, "storage-credentials": [],
                    "required-protocol": {"min-reader-version": 3, "min-writer-version": 7},
                    "required-properties": {"delta.enableInCommitTimestamps": "true"},
                }  # fmt: skip
            case ["POST", "tables"]:
                entry = self.staging.pop(body["location"])
                entry.properties = dict(body["properties"])
                entry.take_features(body["protocol"])
                self._schema(schema[1])[body["name"]] = entry
                return entry.loaded()
            case ["GET", "tables", name]:
                return self._load(*schema, name)
            case ["POST", "tables", name]:
                return self._update(self._entry(*schema, name), body)
            case ["GET", "tables", name, "credentials"]:
                _check_operation(body)
                entry = self._entry(*schema, name)
                vend = self.vended.get(f"{'.'.join(schema)}.{name}")
                return {"storage-credentials": vend() if vend else self.vends(entry.location)}
        raise Refused(404, "ENDPOINT_NOT_FOUND", "no such path")

    def _load(self, *parts: str) -> Any:
        entry, name = self._entry(*parts), ".".join(parts)
        if entry.form != "DELTA":
            raise Refused(400, "UnsupportedTableFormatException", f"{name} is {entry.form}")
        if name in self.frozen:
            return self.frozen[name]
        return entry.loaded(max(0, entry.latest - self.late))

    def _update(self, entry: Entry, body: Any) -> Any:
        if {"type": "assert-table-uuid", "uuid": entry.table_id} not in body.get(
            "requirements", ()
        ):
            raise Refused(409, "UpdateRequirementConflictException", "it is another table")
        for update in body["updates"]:
            match update["action"]:
                case "add-commit":
                    self._ratify(entry, update["commit"])
                case "set-latest-backfilled-version":
                    published = update["latest-published-version"]
                    for version in [v for v in entry.commits if v <= published]:
                        del entry.commits[version]
                case "set-protocol":
                    entry.take_features(update["protocol"])
                case "update-metadata-snapshot-version":
                    entry.latest = update["last-commit-version"]
        return entry.loaded()

    def _ratify(self, entry: Entry, commit: dict[str, Any]) -> None:
        version = commit["version"]
        known = entry.commits.get(version)
        if known is not None and known["file-name"] == commit["file-name"]:
            return  # its writer has lost the answer
        if version != entry.latest + 1:
            raise Refused(409, "CommitVersionConflictException", f"version {version} is taken")
        if len(entry.commits) >= UNPUBLISHED_MAX:
            raise Refused(429, "ResourceExhaustedException", "publish first")
        entry.commits[version], entry.latest = commit, version

    def _catalog(self, name: str) -> Any:
        if name != "main":
            raise Refused(404, "NotFoundException", "Entity not found.")
        return {"name": name}

    def _schema(self, name: str) -> dict[str, Entry]:
        if name not in self.schemas:
            raise Refused(404, "NotFoundException", "Entity not found.")
        return self.schemas[name]

    def _entry(self, catalog: str, schema: str, name: str) -> Entry:
        self._catalog(catalog)
        if name in self.forbidden:
            raise Refused(403, "PermissionDeniedException", f"no SELECT on {name}")
        found = self._schema(schema).get(name)
        if found is None:
            raise Refused(404, "NotFoundException", "Entity not found.")
        return found

    def _page(self, key: str, items: list[Any], query: dict[str, str]) -> Any:
        try:
            at, most = int(query.get("page_token") or 0), int(query.get("max_results") or 0)
        except ValueError as e:
            raise Refused(400, "INVALID_ARGUMENT", str(e)) from None
        if at < 0 or most < 0:
            raise Refused(400, "INVALID_ARGUMENT", "a number is negative")
        end = at + min(self.page_items, most or self.page_items)
        more = {"next_page_token": str(end)} if end < len(items) else {}
        return {key: items[at:end], **more}

    def sell(self, form: dict[str, str], authorization: str) -> Any:
        """A token for the OAuth client."""
        import base64

        expected = base64.b64encode(":".join(CLIENT).encode()).decode()
        if authorization != f"Basic {expected}" or form.get("scope") != "all-apis":
            raise Refused(401, "invalid_client", "no such client")
        token = f"sold-token-{uuid.uuid4()}"
        self.tokens.add(token)
        return {"access_token": token, "expires_in": self.token_life_s}


class _Server(ThreadingHTTPServer):
    """A server that takes a client's end for what it is."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong here, and nothing of clients that were killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    catalog: CatalogServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65_536

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Any method is answered here: by itself the base class has 501 for most."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        authorization = self.headers.get("Authorization", "")
        try:
            with self.catalog.lock:
                self.catalog.requests.append(f"{self.command} {self.path}")
                if parts.path == "/oidc/v1/token":
                    form = {key: values[0] for key, values in parse_qs(raw.decode()).items()}
                    answer = self.catalog.sell(form, authorization)
                else:
                    body = _decoded(raw) if raw else None
                    path = parts.path.removeprefix(API)
                    answer = self.catalog.answer(self.command, path, query, body, authorization)
            status = 200
        except Refused as e:
            status = e.status
            said = {"message": str(e), "type": e.kind, "code": e.status}
            answer = {"error": said} if "/delta/" in self.path else {
                "error_code": e.kind, "message": str(e)
            }  # fmt: skip
        document = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(document)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(document)


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as e:
        raise Refused(400, "BadRequestException", str(e)) from None


def _of(fields: Any, key: str) -> str:
    """A text of a query or a body, which must have it."""
    found = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(found, str):
        raise Refused(400, "InvalidParameterValueException", f"{key} is missing")
    return found


def _check_operation(fields: Any) -> None:
    if _of(fields, "operation") not in ("READ", "READ_WRITE"):
        raise Refused(400, "InvalidParameterValueException", "operation is READ or READ_WRITE")


def _parts(name: str, count: int) -> list[str]:
    parts = name.split(".")
    if len(parts) != count:
        raise Refused(400, "InvalidParameterValueException", f"{name!r} has not {count} parts")
    return parts


def _listed(name: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": name.rsplit(".", maxsplit=1)[-1], "table_id": entry.table_id,
        "data_source_format": entry.form, "storage_location": entry.location,
        "properties": entry.properties,
        "created_at": int(time.time() * 1000),
    }  # fmt: skip


@contextmanager
def serving_catalog(root: Path) -> Iterator[CatalogServer]:
    """A server, as long as the block runs."""
    server = CatalogServer(root)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()

"""What the reference server answers, and the faults that it can have."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tests.sharing.reference_log import Change, ReferenceTable, dv_file, file_id


@dataclass
class Faults:
    """What goes wrong, or is lacking, from now on."""

    #: The next API requests whose path matches get these answers: (pattern, status, headers).
    refuse: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    #: Each URL serves so many requests, then it has expired.
    requests_per_url: int | None = None
    #: Every URL's answer to come is this status (None: the file).
    file_status: int | None = None
    #: The answer breaks off after so many lines; the connection, or only the text, ends there.
    cut_after_lines: int | None = None
    cut_connection: bool = True
    cut_within_line: bool = False
    #: The server knows no end-of-stream action, or promises one and sends none.
    end_of_stream: bool = True
    omit_end: bool = False
    #: The end-of-stream action tells of an error: its members.
    end_error: dict[str, Any] | None = None
    #: It answers in several pages of so many files.
    files_per_page: int | None = None
    #: It knows only the older way to ask for a version.
    only_head: bool = False
    #: It does not know the capabilities header.
    only_parquet: bool = False
    #: It answers delta whatever was asked; or says one format and sends the other.
    only_delta: bool = False
    wrong_format: bool = False
    #: It takes the end of a range as the hint that it is.
    ignore_ending_version: bool = False
    #: It has no history: neither versions by time, nor time travel.
    history: bool = True
    #: It has no ranges of data files; no ranges of bytes of one; another file at each read.
    streaming: bool = True
    byte_ranges: bool = True
    changing_etag: bool = False
    #: The metadata comes without properties, as some servers have it.
    omit_configuration: bool = False
    #: Lists: no items member where there is none, an empty token at the end.
    omit_items: bool = False
    empty_token: bool = False


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    capabilities: str
    body: dict[str, Any] | None
    authorization: str


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Answers:
    """What the endpoints answer about ``tables``, by (share, schema, table)."""

    def __init__(self, tables: dict[tuple[str, str, str], Path]) -> None:
        self.tables = {
            tuple(n.lower() for n in name): (name, ReferenceTable(folder))
            for name, folder in tables.items()
        }
        self.faults = Faults()
        self.urls: dict[str, tuple[Path, int]] = {}
        self.lock = threading.RLock()
        self.answer = threading.local()  # what is of the answer that a thread is at
        self.files = ""  # where URLs lead to

    def page(self, names: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        """One page of a list; its token is where the next one begins."""
        limit = int(query.get("maxResults", 500))
        if limit < 0:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", "maxResults must not be negative")
        start = int(query.get("pageToken", 0))
        items = names[start : start + limit]
        document: dict[str, Any] = {"items": items}
        if not items and self.faults.omit_items:
            document = {}
        if start + limit < len(names):
            document["nextPageToken"] = str(start + limit)
        elif self.faults.empty_token:
            document["nextPageToken"] = ""
        return document

    def table(self, parts: list[str]) -> ReferenceTable:
        """The table that a path names."""
        found = self.tables.get(tuple(p.lower() for p in parts))
        if found is None:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"no table {'.'.join(parts)}")
        return found[1]

    def url(self, table: ReferenceTable, path: str) -> str:
        """A new URL for a file of a table, which looks pre-signed; the same one throughout an
        answer, for by it a client may know a file that is removed and added again."""
        name = unquote(path)
        file = Path(name) if name.startswith("/") else table.folder / name
        given: dict[Path, str] = self.answer.__dict__.setdefault("urls", {})
        if file not in given:
            given[file] = self._new_url(file)
        return given[file]

    def _new_url(self, file: Path) -> str:
        with self.lock:
            key = f"{len(self.urls):08d}"
            self.urls[key] = file, self.faults.requests_per_url or 1_000_000
        return f"{self.files}/{quote(file.name)}?X-Amz-Signature={key}"

    def file_line(self, table: ReferenceTable, change: Change, form: str, *, ranged: bool) -> Any:
        """A file of an answer."""
        action = dict(change.action)
        stamp = {"version": change.version, "timestamp": change.timestamp} if ranged else {}
        where = action["path"].removeprefix("file:").replace("///", "/")
        entry = {"id": file_id(where), **stamp, "expirationTimestamp": 4_102_444_800_000}
        url = self.url(table, where)
        if form == "parquet":
            kind = {"cdc": "cdf"}.get(change.kind, change.kind) if ranged else "file"
            entry |= {
                "url": url,
                "partitionValues": action.get("partitionValues") or {},
                "size": action.get("size", 1),
            }
            if action.get("stats"):
                entry["stats"] = action["stats"]
            return {kind: entry}
        action["path"] = url
        dv = dv_file(change.action)
        if dv is not None:
            entry["deletionVectorFileId"] = file_id(dv)
            action["deletionVector"] = {
                **action["deletionVector"],
                "storageType": "p",
                "pathOrInlineDv": self.url(table, quote(dv)),
            }
        return {"file": {**entry, "deltaSingleAction": {change.kind: action}}}

    def head(self, table: ReferenceTable, version: int, form: str, *, stamped: bool) -> list[Any]:
        """The protocol and metaData lines of a version."""
        return [
            {"protocol": {"deltaProtocol": table.protocol(version)}}
            if form == "delta"
            else {"protocol": {"minReaderVersion": 1}},
            self.metadata_line(table, version, form, stamped=stamped),
        ]

    def metadata_line(
        self, table: ReferenceTable, version: int, form: str, *, stamped: bool
    ) -> dict[str, Any]:
        """The metaData line of a version."""
        metadata = table.metadata(version)
        stamp = {"version": version} if stamped else {}
        if self.faults.omit_configuration:
            metadata.pop("configuration", None)
        if form == "delta":
            return {"metaData": {"deltaMetadata": metadata, **stamp}}
        keys = ("id", "format", "schemaString", "partitionColumns", "configuration")
        return {"metaData": {**{k: metadata[k] for k in keys if k in metadata}, **stamp}}

    def form(self, table: ReferenceTable, version: int, capabilities: str) -> str:
        """The format that the client and the table agree on."""
        if self.faults.only_parquet:
            return "parquet"
        said = dict(part.lower().split("=", 1) for part in capabilities.split(";") if "=" in part)
        asked = said.get("responseformat", "parquet").split(",")
        protocol = table.protocol(version)
        features = {f.lower() for f in protocol.get("readerFeatures", ())}
        if protocol["minReaderVersion"] == 2:
            features = {"columnmapping"}
        # What says nothing about how files are read needs nothing of a client.
        features -= {"v2checkpoint", "vacuumprotocolcheck"}
        if self.faults.only_delta or (features and "delta" in asked) or asked == ["delta"]:
            lacking = features - set(said.get("readerfeatures", "").split(","))
            if lacking and not self.faults.only_delta:
                raise Refusal(400, "UNSUPPORTED_FEATURES", f"the client lacks {sorted(lacking)}")
            return "delta"
        if features:
            raise Refusal(400, "UNSUPPORTED_FEATURES", "the table needs responseformat=delta")
        return "parquet"

    def at_time(self, table: ReferenceTable, text: str, *, after: bool) -> int:
        """The version of a time."""
        if not self.faults.history:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", "history sharing is not enabled")
        moment = dt.datetime.fromisoformat(text)
        millis = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
        versions = range(table.version + 1)
        fitting = [v for v in versions if (table.timestamp(v) >= millis if after else
                                           table.timestamp(v) <= millis)]  # fmt: skip
        if not fitting:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"no version at {text}")
        return min(fitting) if after else max(fitting)

    def version(self, parts: list[str], query: dict[str, str]) -> int:
        """The answer to a query of the version."""
        table = self.table(parts)
        if "startingTimestamp" in query:
            return self.at_time(table, query["startingTimestamp"], after=True)
        return table.version

    def query(
        self, table: ReferenceTable, capabilities: str, body: dict[str, Any]
    ) -> tuple[int, str, list[Any]]:
        """(version, format, lines) of /query."""
        newest = table.version
        if "startingVersion" in body:
            if not self.faults.streaming:
                raise Refusal(400, "INVALID_PARAMETER_VALUE", "history sharing is not enabled")
            return self._range(table, capabilities, int(body["startingVersion"]),
                               int(body.get("endingVersion", newest)), feed=False)  # fmt: skip
        version = newest
        if "refreshToken" in body:
            version = int(body["refreshToken"].removeprefix("refresh-"))
        elif "version" in body or "timestamp" in body:
            if not self.faults.history:
                raise Refusal(400, "INVALID_PARAMETER_VALUE", "history sharing is not enabled")
            version = (
                int(body["version"])
                if "version" in body
                else self.at_time(table, body["timestamp"], after=False)
            )
        if not 0 <= version <= newest:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"no version {version}")
        form = self.form(table, version, capabilities)
        files = table.snapshot(version)
        if body.get("limitHint") is not None:
            files = files[: max(1, int(body["limitHint"]))]
        lines = self.head(table, version, form, stamped="version" in body)
        lines += [self.file_line(table, f, form, ranged=False) for f in files]
        return version, form, lines

    def changes(
        self, table: ReferenceTable, capabilities: str, query: dict[str, str]
    ) -> tuple[int, str, list[Any]]:
        """(version, format, lines) of /changes."""
        newest = table.version
        if "startingVersion" in query:
            first = int(query["startingVersion"])
        elif "startingTimestamp" in query:
            first = self.at_time(table, query["startingTimestamp"], after=True)
        else:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", "no startingVersion")
        last = int(query.get("endingVersion", newest))
        if "endingTimestamp" in query:
            last = self.at_time(table, query["endingTimestamp"], after=False)
        return self._range(
            table, capabilities, first, last, feed=True,
            historical=query.get("includeHistoricalMetadata", "").lower() == "true",
        )  # fmt: skip

    def _range(
        self, table: ReferenceTable, capabilities: str, first: int, last: int,
        *, feed: bool, historical: bool = True,
    ) -> tuple[int, str, list[Any]]:  # fmt: skip
        newest = table.version
        if not 0 <= first <= newest:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"no version {first}")
        last = newest if self.faults.ignore_ending_version else min(last, newest)
        for version in range(first, last + 1):
            if feed and not table.has_feed(version):
                raise Refusal(400, "INVALID_PARAMETER_VALUE", f"no change data at {version}")
        form = self.form(table, last, capabilities)
        lines = self.head(table, first if historical else newest, form, stamped=historical)
        for version in range(first, last + 1):
            if historical and version > first and table.changes_metadata(version):
                lines.append(self.metadata_line(table, version, form, stamped=True))
            found = table.data_changes(version, feed=feed)
            lines += [self.file_line(table, change, form, ranged=True) for change in found]
        return first, form, lines

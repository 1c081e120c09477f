"""The Delta Sharing protocol's data types on the wire, for the client and for the server.

Both send and read them: shares, schemas and tables in pages, the capabilities header, error bodies,
and NDJSON lines. Page tokens, ids and refresh tokens are opaque strings. Field names are those of
the protocol, which defines them in the sections named here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from tailer.delta.features import FEATURES
from tailer.errors import TableError, TransientError

ResponseFormat = Literal["parquet", "delta"]

CAPABILITIES_HEADER = "delta-sharing-capabilities"
TABLE_VERSION_HEADER = "Delta-Table-Version"
JSON_TYPE = "application/json; charset=utf-8"
NDJSON_TYPE = "application/x-ndjson; charset=utf-8"

#: The supported reader features, as the capabilities header spells them.
READER_FEATURES = frozenset(
    f.name.lower() for f in FEATURES.values() if f.is_read and not f.by_catalog
)


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _require_name(document: Any, key: str, what: str) -> str:
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, str):
        raise TableError(f"the sharing server's answer has a {what} without {key}")
    return value


def _text_or_none(document: Mapping[str, Any], key: str) -> str | None:
    value = document.get(key)
    return value if isinstance(value, str) and value else None


@dataclass(frozen=True, slots=True)
class Share:
    """A share ("List Shares"). Names are case-insensitive; ``id`` is optional and immutable."""

    name: str
    id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the item of a list."""
        return _drop_none({"name": self.name, "id": self.id})

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Parse an item of a list. Raises :class:`TableError` for one without a name."""
        return cls(_require_name(document, "name", "share"), _text_or_none(document, "id"))


@dataclass(frozen=True, slots=True)
class ShareSchema:
    """A schema of a share ("List Schemas in a Share")."""

    name: str
    share: str

    def to_json(self) -> dict[str, Any]:
        """Return the item of a list."""
        return {"name": self.name, "share": self.share}

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Parse an item of a list. Raises :class:`TableError` for one without its names."""
        return cls(
            _require_name(document, "name", "schema"), _require_name(document, "share", "schema")
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A shared table ("List Tables in a Schema"); ``id`` and ``share_id`` are optional."""

    name: str
    schema: str
    share: str
    share_id: str | None = None
    id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the item of a list."""
        return _drop_none(
            {
                "name": self.name,
                "schema": self.schema,
                "share": self.share,
                "shareId": self.share_id,
                "id": self.id,
            }
        )

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Parse an item of a list. Raises :class:`TableError` for one without its names."""
        return cls(
            _require_name(document, "name", "table"),
            _require_name(document, "schema", "table"),
            _require_name(document, "share", "table"),
            _text_or_none(document, "shareId"),
            _text_or_none(document, "id"),
        )

    def __str__(self) -> str:
        return f"{self.share}.{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, with its items as JSON objects.

    ``next_page_token`` None: there are no more. On the wire, ``items`` may be absent and the token
    absent or empty; a page without items may still have a token (maxResults=0).
    """

    items: tuple[dict[str, Any], ...]
    next_page_token: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the body of a list's answer."""
        return _drop_none({"items": list(self.items), "nextPageToken": self.next_page_token})

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Parse the body of a list's answer. Raises :class:`TableError` if it is not a page."""
        items = document.get("items") if isinstance(document, dict) else "no object"
        items = [] if items is None else items
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise TableError("the sharing server's answer is not a list of items")
        return cls(tuple(items), _text_or_none(document, "nextPageToken"))


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The body of every error answer: a code for programs, a message for people."""

    error_code: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {"errorCode": self.error_code, "message": self.message}

    @classmethod
    def from_bytes(cls, body: bytes) -> Self | None:
        """Parse the error in a body; None if the body is something else (a proxy's page, say)."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        code, message = document.get("errorCode"), document.get("message")
        if code is None and message is None:
            return None
        return cls(str(code or ""), str(message or ""))

    def __str__(self) -> str:
        return ": ".join(part for part in (self.error_code, self.message) if part)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities header ("Delta Sharing Capabilities Header").

    ``key=value,value;key=value``, case-insensitive, unknown keys ignored; all values here are in
    lower case. ``response_formats`` keeps the sender's order and is empty if the header names none,
    which means parquet. ``end_of_stream`` (``includeendstreamaction=true``) asks for, or promises,
    a last line that confirms that the answer is whole.
    """

    response_formats: tuple[str, ...] = ()
    reader_features: frozenset[str] = field(default_factory=frozenset)
    end_of_stream: bool = False

    @classmethod
    def from_header(cls, header: str | None) -> Self:
        """Parse the capabilities in a header; without a header, none."""
        found: dict[str, list[str]] = {}
        for part in (header or "").split(";"):
            key, separator, values = part.partition("=")
            if separator:
                listed = [v.strip().lower() for v in values.split(",")]
                found.setdefault(key.strip().lower(), []).extend(v for v in listed if v)
        return cls(
            tuple(dict.fromkeys(found.get("responseformat", ()))),
            frozenset(found.get("readerfeatures", ())),
            found.get("includeendstreamaction") == ["true"],
        )

    def to_header(self) -> str:
        """Return the header's value; empty without capabilities."""
        parts = []
        if self.response_formats:
            parts.append("responseformat=" + ",".join(self.response_formats))
        if self.reader_features:
            parts.append("readerfeatures=" + ",".join(sorted(self.reader_features)))
        if self.end_of_stream:
            parts.append("includeendstreamaction=true")
        return ";".join(parts)

    def choose_format(self, *, needs_delta: bool) -> ResponseFormat | None:
        """Return the server's choice of a format for a table; None if no format suits the client.

        ``needs_delta``: the table has features that the parquet format can't express. If the client
        names one format, it gets that one for any table; of several, delta only if needed.
        """
        asked = [f for f in self.response_formats or ("parquet",) if f in ("parquet", "delta")]
        if needs_delta:
            return "delta" if "delta" in asked else None
        if "parquet" in asked:
            return "parquet"
        return "delta" if asked else None


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The end-of-stream action: the last line of an answer whose header promises one.

    ``refresh_token`` requests the same files again, with new URLs; ``next_page_token`` the rest of
    the answer; ``min_url_expiration_ms`` (epoch ms) is when the first of the URLs expires.
    ``error`` is the reason why an answer breaks off, ``error_status`` its HTTP status.
    """

    refresh_token: str | None = None
    next_page_token: str | None = None
    min_url_expiration_ms: int | None = None
    error: str | None = None
    error_status: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line's object."""
        return {
            "endStreamAction": _drop_none(
                {
                    "refreshToken": self.refresh_token,
                    "nextPageToken": self.next_page_token,
                    "minUrlExpirationTimestamp": self.min_url_expiration_ms,
                    "errorMessage": self.error,
                    "httpStatusErrorCode": self.error_status,
                }
            )
        }

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Parse the value of ``endStreamAction``."""
        values = values if isinstance(values, dict) else {}
        expiration = values.get("minUrlExpirationTimestamp")
        status = values.get("httpStatusErrorCode")
        return cls(
            _text_or_none(values, "refreshToken"),
            _text_or_none(values, "nextPageToken"),
            expiration if isinstance(expiration, int) and expiration > 0 else None,
            _text_or_none(values, "errorMessage"),
            status if isinstance(status, int) and not isinstance(status, bool) else None,
        )


def encode_ndjson_line(document: Mapping[str, Any]) -> bytes:
    """Return one line of an answer, with its newline; it has no other newline."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def parse_ndjson_line(line: bytes, known: Iterable[str]) -> tuple[str, Any] | None:
    """Parse (name, value) of the only field of a line; None for a blank line or another name.

    Raises :class:`TransientError` for a line that is not JSON, and :class:`TableError` for one that
    is not a JSON object, or has two known fields.
    """
    if not line.strip():
        return None
    try:
        document = json.loads(line)
        if b"\\ud" in line or b"\\uD" in line:
            # Half a surrogate pair is not text: it can be neither stored nor sent on.
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        raise TableError(f"a line of the sharing server's answer is not JSON ({e})") from None
    except (ValueError, RecursionError) as e:
        # A proxy may answer in the server's place, with its own page and 200.
        raise TransientError(f"a line of the sharing server's answer is not JSON ({e})") from None
    if not isinstance(document, dict):
        raise TableError("a line of the sharing server's answer is not a JSON object")
    found = [(name, document[name]) for name in known if document.get(name) is not None]
    if len(found) > 1:
        raise TableError("a line of the sharing server's answer has two fields, and may have one")
    return found[0] if found else None

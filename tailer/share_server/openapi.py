"""The OpenAPI description of the API, which the server publishes at ``{prefix}/openapi.json``."""

from __future__ import annotations

from typing import Any

from tailer import __version__

_TABLE = "/shares/{share}/schemas/{schema}/tables/{table}"
_LONG = {"type": "integer", "format": "int64", "minimum": 0}
_COUNT = {"type": "integer", "format": "int32", "minimum": 0, "maximum": 2**31 - 1}
_TIME = {"type": "string", "example": "2022-01-01T00:00:00Z"}
_TEXT = {"type": "string"}


def _object(required: list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _make_schemas() -> dict[str, Any]:
    share = _object(["name"], name=_TEXT, id=_TEXT)
    schema = _object(["name", "share"], name=_TEXT, share=_TEXT)
    table = _object(
        ["name", "schema", "share"], name=_TEXT, schema=_TEXT, share=_TEXT, shareId=_TEXT, id=_TEXT
    )
    names = {"Share": share, "Schema": schema, "Table": table}
    pages = {
        f"{name}s": _object(
            [],
            items={"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
            nextPageToken=_TEXT,
        )
        for name in names
    }
    query = _object(
        [],
        predicateHints={"type": "array", "items": _TEXT},
        jsonPredicateHints=_TEXT,
        limitHint=_COUNT,
        version=_LONG,
        timestamp=_TIME,
        startingVersion=_LONG,
        endingVersion=_LONG,
        includeRefreshToken={"type": "boolean"},
        refreshToken=_TEXT,
    )
    error = _object(["errorCode", "message"], errorCode=_TEXT, message=_TEXT)
    one = _object(["share"], share={"$ref": "#/components/schemas/Share"})
    return {**names, **pages, "GetShare": one, "Query": query, "Error": error}


def _body(schema: str, kind: str = "application/json") -> dict[str, Any]:
    return {"content": {kind: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


_VERSION_HEADER = {"Delta-Table-Version": {"required": True, "schema": _LONG}}


def _operation(
    name: str,
    summary: str,
    answer: dict[str, Any],
    *parameters: dict[str, Any],
    body: str | None = None,
) -> dict[str, Any]:
    refusals = {
        "400": "malformed, or not supported for this table",
        "401": "the bearer token is missing, wrong or expired",
        "404": "there is no such thing, or it is not shared with this recipient",
        "413": "the body is too large",
        "429": "too many requests; Retry-After says when to come back",
        "500": "the server failed",
    }
    responses: dict[str, Any] = {"200": {"description": "done", **answer}}
    if name == "credentials":
        responses.clear()
    for status, description in refusals.items():
        responses[status] = {"description": description, **_body("Error")}
    found: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": responses,
    }
    if body is not None:
        found["requestBody"] = {"required": True, **_body(body)}
    return found


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _make_paths() -> dict[str, Any]:
    paging = (_query("maxResults", _COUNT), _query("pageToken", _TEXT))
    lines: dict[str, Any] = {
        "headers": _VERSION_HEADER,
        "content": {"application/x-ndjson": {"schema": _TEXT}},
    }
    capabilities = {
        "name": "delta-sharing-capabilities", "in": "header", "required": False, "schema": _TEXT,
        "example": "responseformat=delta;readerfeatures=deletionvectors,columnmapping",
    }  # fmt: skip
    changes = (
        _query("startingVersion", _LONG), _query("startingTimestamp", _TIME),
        _query("endingVersion", _LONG), _query("endingTimestamp", _TIME),
        _query("includeHistoricalMetadata", {"type": "boolean"}), capabilities,
    )  # fmt: skip
    version = {"headers": _VERSION_HEADER}
    operations: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("/shares", "get", _operation("list-shares", "List shares", _body("Shares"), *paging)),
        ("/shares/{share}", "get", _operation("get-share", "Get a share", _body("GetShare"))),
        (
            "/shares/{share}/schemas", "get",
            _operation("list-schemas", "List schemas in a share", _body("Schemas"), *paging),
        ),
        (
            "/shares/{share}/schemas/{schema}/tables", "get",
            _operation("list-tables", "List tables in a schema", _body("Tables"), *paging),
        ),
        (
            "/shares/{share}/all-tables", "get",
            _operation("list-all-tables", "List all tables in a share", _body("Tables"), *paging),
        ),
        (
            f"{_TABLE}/version", "get",
            _operation("version", "Query table version", version,
                       _query("startingTimestamp", _TIME)),
        ),
        (_TABLE, "head", _operation("version-head", "Query table version (deprecated)", version)),
        (
            f"{_TABLE}/metadata", "get",
            _operation("metadata", "Query table metadata", lines, capabilities,
                       _query("version", _LONG), _query("timestamp", _TIME)),
        ),
        (
            f"{_TABLE}/query", "post",
            _operation("query", "Read data from a table", lines, capabilities, body="Query"),
        ),
        (
            f"{_TABLE}/changes", "get",
            _operation("changes", "Read change data feed from a table", lines, *changes),
        ),
        (
            f"{_TABLE}/temporary-table-credentials", "post",
            _operation("credentials", "Not issued: always refused", {}),
        ),
    )  # fmt: skip
    found: dict[str, Any] = {}
    for path, method, operation in operations:
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        operation["parameters"] += [
            {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names
        ]
        found.setdefault(path, {})[method] = operation
    return found


def describe_api(public_url: str) -> dict[str, Any]:
    """Return the description, with the server's public URL."""
    return {
        "openapi": "3.0.3",
        "info": {"title": "Delta Sharing, served by delta-tailer", "version": __version__},
        "servers": [{"url": public_url}],
        "security": [{"bearer": []}],
        "paths": _make_paths(),
        "components": {
            "schemas": _make_schemas(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }

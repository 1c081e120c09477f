"""The protocol's words on the wire."""

from __future__ import annotations

import pytest

from tailer.delta.features import FEATURES
from tailer.errors import TableError, TransientError
from tailer.sharing.model import (
    READER_FEATURES,
    Capabilities,
    EndOfStream,
    ErrorBody,
    Page,
    Share,
    ShareSchema,
    Table,
    encode_ndjson_line,
    parse_ndjson_line,
)


def test_capabilities_are_read_in_any_case_and_spacing() -> None:
    header = (
        " ResponseFormat = Delta , PARQUET ;readerFeatures=deletionVectors,,ColumnMapping;x;y=z"
    )
    found = Capabilities.from_header(header)
    assert found.response_formats == ("delta", "parquet")
    assert found.reader_features == {"deletionvectors", "columnmapping"}
    assert not found.end_of_stream


def test_capabilities_survive_the_wire() -> None:
    said = Capabilities(("delta", "parquet"), frozenset({"b", "a"}), end_of_stream=True)
    text = said.to_header()
    assert text == "responseformat=delta,parquet;readerfeatures=a,b;includeendstreamaction=true"
    assert Capabilities.from_header(text) == said
    assert Capabilities().to_header() == ""


@pytest.mark.parametrize("header", [None, "", ";", "responseformat=", "nonsense"])
def test_no_capabilities_are_said_by_no_header(header: str | None) -> None:
    assert Capabilities.from_header(header) == Capabilities()


@pytest.mark.parametrize(
    ("header", "plain", "advanced"),
    [
        (None, "parquet", None),
        ("responseformat=parquet", "parquet", None),
        ("responseformat=delta", "delta", "delta"),
        ("responseformat=delta,parquet", "parquet", "delta"),
        ("responseformat=PARQUET,Delta", "parquet", "delta"),
        ("responseformat=csv", None, None),
        ("readerfeatures=deletionvectors", "parquet", None),
    ],
)
def test_a_server_chooses_the_format_that_the_table_needs(
    header: str | None, plain: str | None, advanced: str | None
) -> None:
    said = Capabilities.from_header(header)
    assert said.choose_format(needs_delta=False) == plain
    assert said.choose_format(needs_delta=True) == advanced


def test_we_offer_the_reader_features_that_we_read_and_no_others() -> None:
    assert {"deletionvectors", "columnmapping", "timestampntz"} <= READER_FEATURES
    assert "catalogmanaged" not in READER_FEATURES
    assert {
        f.lower() for f, known in FEATURES.items() if known.is_read and not known.by_catalog
    } == READER_FEATURES


@pytest.mark.parametrize(
    "body", [{}, {"items": None}, {"items": []}, {"items": [], "nextPageToken": ""}]
)
def test_an_empty_page_has_many_shapes(body: dict[str, object]) -> None:
    assert Page.from_json(body) == Page(())


@pytest.mark.parametrize("body", [None, [], {"items": {}}, {"items": ["x"]}])
def test_what_is_no_page_is_refused(body: object) -> None:
    with pytest.raises(TableError, match="not a list of items"):
        Page.from_json(body)


def test_names_survive_the_wire_and_optional_ids_stay_away() -> None:
    table = Table("t", "x", "s", "share-id", "table-id")
    assert Table.from_json(table.to_json()) == table
    assert Share("s").to_json() == {"name": "s"}
    assert ShareSchema.from_json({"name": "x", "share": "s", "more": 1}) == ShareSchema("x", "s")
    with pytest.raises(TableError, match="without schema"):
        Table.from_json({"name": "t", "share": "s"})


def test_an_error_body_is_read_and_a_proxys_page_is_not() -> None:
    assert str(ErrorBody.from_bytes(b'{"errorCode":"X","message":"why"}')) == "X: why"
    assert ErrorBody.from_bytes(b"<html>502</html>") is None
    assert ErrorBody.from_bytes(b"[]") is None
    assert ErrorBody.from_bytes(b"{}") is None


def test_a_line_is_one_line() -> None:
    line = encode_ndjson_line({"file": {"id": "a\nb é"}})
    assert line.count(b"\n") == 1
    assert parse_ndjson_line(line, ["file"]) == ("file", {"id": "a\nb é"})
    assert parse_ndjson_line(b" \n", ["file"]) is None
    assert parse_ndjson_line(b'{"other":1}', ["file"]) is None
    assert parse_ndjson_line(b'{"file":null,"add":{}}', ["file", "add"]) == ("add", {})


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"file":{},"add":{}}'])
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(TransientError if line == b"{" else TableError):
        parse_ndjson_line(line, ["file", "add"])


def test_the_end_of_a_stream_survives_the_wire() -> None:
    end = EndOfStream("refresh", "next", 12)
    assert EndOfStream.from_json(end.to_json()["endStreamAction"]) == end
    assert EndOfStream.from_json({"nextPageToken": "", "minUrlExpirationTimestamp": "x"}) == (
        EndOfStream()
    )

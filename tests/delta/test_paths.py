"""Paths and names of the log: decoded once, absolute or relative, and never out of the table."""

from __future__ import annotations

import pytest

from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.paths import find_dv_location, parse_location, split_scheme, z85_decode
from tailer.errors import CorruptLog
from tailer.testing.table import z85_encode
from tests.support.feeds import refusal


def vector(storage: str, path: str) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor(storage, path, 40, 6, 4)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("part-0.parquet", "part-0.parquet"),
        ("p=1/part-0.parquet", "p=1/part-0.parquet"),
        ("p=a%20b/x.parquet", "p=a b/x.parquet"),
        ("p=a%252Fb/x.parquet", "p=a%2Fb/x.parquet"),
        ("p=%C3%BC/x.parquet", "p=ü/x.parquet"),
        ("p=ü+1/x.parquet", "p=ü+1/x.parquet"),
        ("100%.parquet", "100%.parquet"),
        ("..hidden/a..b.parquet", "..hidden/a..b.parquet"),
        ("/data/t/x.parquet", "/data/t/x.parquet"),
        ("file:/data/a%20b.parquet", "/data/a b.parquet"),
        ("file:///data/x.parquet", "/data/x.parquet"),
        ("file://localhost/data/x.parquet", "/data/x.parquet"),
        ("FILE:///data/x.parquet", "/data/x.parquet"),
        ("s3://bucket/key%20x", "s3://bucket/key x"),
        ("s3a://bucket/key", "s3://bucket/key"),
        ("s3n://bucket/key", "s3://bucket/key"),
        ("abfss://c@account/key", "abfss://c@account/key"),
        ("p=12:30/x.parquet", "p=12:30/x.parquet"),
    ],
)
def test_a_path_is_decoded_once_and_says_where_it_points(path: str, expected: str) -> None:
    assert parse_location(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "../secret.parquet",
        "a/../../secret.parquet",
        "%2e%2e/secret.parquet",
        "a/%2E%2E/%2e./secret.parquet",
        "a%2F..%2F..%2Fsecret.parquet",
        "..",
        "file:/data/table/../../secret.parquet",
        "/data/../secret.parquet",
    ],
)
def test_a_path_that_climbs_is_refused(path: str) -> None:
    message = refusal(lambda: parse_location(path), CorruptLog)
    assert "climbs out of the table" in message
    assert path in message


@pytest.mark.parametrize("path", ["", "a\x00b", "a%00b", "%FF.parquet", "%C3", "a/%ED%A0%80"])
def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    with pytest.raises(CorruptLog):
        parse_location(path)


def test_a_scheme_is_cut_off_and_folded() -> None:
    assert split_scheme("S3A://bucket/key") == ("s3a", "bucket/key")
    assert split_scheme("file:/a/b") == ("file", "/a/b")
    assert split_scheme("a=b:c/d") == ("", "a=b:c/d")


def test_the_deletion_vector_file_of_the_protocols_example_is_found() -> None:
    file = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert find_dv_location(vector("u", "ab^-aqEH.-t@S}K{vb[*k^")) == f"ab/{file}"
    assert find_dv_location(vector("u", "^-aqEH.-t@S}K{vb[*k^")) == file
    assert find_dv_location(vector("p", f"s3://mytable/{file}")) == f"s3://mytable/{file}"
    assert find_dv_location(vector("i", "anything")) is None


@pytest.mark.parametrize(
    "dv",
    [
        vector("u", "^-aqEH.-t@S}K{vb[*k"),
        vector("u", ""),
        vector("u", "^-aqEH.-t@S}K{vb[*k "),
        vector("u", "^-aqEH.-t@S}K{vb[*kü"),
        vector("u", "../^-aqEH.-t@S}K{vb[*k^"),
        vector("u", "/etc/^-aqEH.-t@S}K{vb[*k^"),
        vector("u", "s3://b/^-aqEH.-t@S}K{vb[*k^"),
        vector("u", "a\x00^-aqEH.-t@S}K{vb[*k^"),
        vector("p", "../x.bin"),
        vector("p", ""),
        vector("x", "abc"),
        vector("", "abc"),
    ],
    ids=str,
)
def test_a_deletion_vector_that_lies_nowhere_is_refused(dv: DeletionVectorDescriptor) -> None:
    with pytest.raises(CorruptLog):
        find_dv_location(dv)


def test_z85_is_the_variant_of_the_rfc() -> None:
    # The test vector of ZeroMQ's RFC 32.
    assert z85_decode("HelloWorld") == bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])
    assert z85_encode(z85_decode("HelloWorld")) == "HelloWorld"
    assert z85_decode("") == b""


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("###00", b"\0"), ("###30", b"\xff"), ("##093", b"\x03\0"), ("##960", b"\xff\xff"),
        ("#rcuQ", b"\xfe_\xd5"), ("Hello##093", b"\x86\x4f\xd2\x6f\x03\0"),
    ],
)  # fmt: skip
def test_a_last_group_of_fewer_bytes_is_read_as_the_z85_crate_pads_it(
    text: str, data: bytes
) -> None:
    assert z85_decode(text) == data


@pytest.mark.parametrize("text", ["####0", "###31", "##961", "##093Hello", "###0 "])
def test_a_padded_group_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CorruptLog, match="base85"):
        z85_decode(text)


@pytest.mark.parametrize("text", ["Hell", "Hello!#", "Hell ", "#####", "Hell\n", "Héllo"])
def test_what_is_not_z85_is_refused(text: str) -> None:
    with pytest.raises(CorruptLog, match="base85"):
        z85_decode(text)

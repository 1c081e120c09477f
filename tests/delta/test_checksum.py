"""Version checksum files: what they say, and what makes them worthless."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailer.delta.checksum import VersionChecksum, parse_checksum
from tailer.errors import CorruptLog
from tests.support.feeds import metadata, refusal

METADATA = {
    "id": "an-id", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
    "schemaString": metadata().schema_string, "configuration": {"a": "b"}, "createdTime": 5,
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "txnId": "t", "tableSizeBytes": 2872, "numFiles": 2, "numMetadata": 1, "numProtocol": 1,
    "setTransactions": [], "domainMetadata": [], "metadata": METADATA,
    "protocol": {"minReaderVersion": 1, "minWriterVersion": 4}, "allFiles": [],
    "fileSizeHistogram": {"sortedBinBoundaries": [0], "fileCounts": [2], "totalBytes": [2872]},
}  # fmt: skip


def parsed(**changes: Any) -> VersionChecksum:
    document = {key: value for key, value in {**WHOLE, **changes}.items() if value is not ...}
    return parse_checksum(json.dumps(document).encode())


def test_the_sums_and_the_state_are_read() -> None:
    found = parsed()
    assert (found.table_size_bytes, found.num_files, found.transaction_id) == (2872, 2, "t")
    assert found.protocol.min_writer_version == 4
    assert found.metadata.configuration == {"a": "b"}


def test_what_is_optional_may_lack() -> None:
    assert parsed(txnId=..., setTransactions=..., allFiles=...).transaction_id is None
    assert parsed(numFiles=0, tableSizeBytes=0).num_files == 0


@pytest.mark.parametrize(
    "changes",
    [{"numFiles": ...}, {"numFiles": -1}, {"numFiles": "2"}, {"numFiles": True},
     {"tableSizeBytes": 2**63}, {"tableSizeBytes": 1.5}, {"tableSizeBytes": None},
     {"numFiles": 0}, {"numMetadata": 2}, {"numProtocol": 0}, {"numProtocol": ...},
     {"protocol": ...}, {"metadata": None}, {"metadata": []}, {"protocol": "x"}, {"txnId": 5},
     {"metadata": {**METADATA, "id": 1}}, {"protocol": {"minReaderVersion": "1"}}],
    ids=str,
)  # fmt: skip
def test_one_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    refusal(lambda: parsed(**changes), CorruptLog)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"5", b"\xff", b'{"numFiles": 1, "numFiles": 1}', b"[" * 100_000]
)
def test_what_is_no_document_is_refused(data: bytes) -> None:
    refusal(lambda: parse_checksum(data), CorruptLog)

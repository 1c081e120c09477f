"""Data files that pyarrow can't read: what the error says of them."""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tailer.decode.unreadable_files import make_unreadable_error
from tailer.delta.damaged_bytes import shows_damage
from tailer.errors import CorruptLog, TableError, TransientError, UnsupportedTable
from tests.decode.test_rows import decoded, order, parquet
from tests.support.feeds import refusal


class PlainKeys(pe.KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """A key service that hides nothing."""

    def __init__(self, _: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        return base64.b64encode(key_bytes)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_an_encrypted_file_is_refused_as_what_it_is(*, plaintext_footer: bool) -> None:
    encryption = pe.CryptoFactory(PlainKeys).file_encryption_properties(
        pe.KmsConnectionConfig(),
        pe.EncryptionConfiguration(
            footer_key="k", column_keys={"k": ["id"]}, plaintext_footer=plaintext_footer
        ),
    )
    data = parquet([{"id": 1}], encryption_properties=encryption)
    message = refusal(lambda: decoded(data), UnsupportedTable)
    assert "version 5, a.parquet: the data file is encrypted" in message


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowTypeError("Extracting byte ranges not supported for type string_view"),
        pa.ArrowNotImplementedError("Function 'array_take' has no kernel matching input types"),
        pa.ArrowInvalid("offset overflow while concatenating arrays, consider casting"),
        pa.ArrowInvalid("Map keys must be annotated as required."),
        pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes"),
        OSError("Couldn't deserialize thrift: TProtocolException: Exceeded size limit"),
        OSError("Unexpected end of stream"),
        OSError("Unexpected end of stream: InitBlock EOF"),
        OSError("Unknown encoding type."),
        OSError("Not yet implemented: only plain dictionary encoding has been implemented."),
        OSError("Logical type Variant can not be applied to group node"),
        OSError("Unsupported compression codec value: 8"),
        ValueError("no such thing"),
        NotImplementedError(""),
    ],
    ids=lambda e: str(e)[:30],
)
def test_an_error_of_the_library_is_not_called_damage_of_the_table(error: Exception) -> None:
    found = make_unreadable_error(order(), error)
    assert isinstance(found, UnsupportedTable)
    message = str(found)
    assert f"(pyarrow {pa.__version__}: " in message
    assert message.startswith("version 5, a.parquet: ")
    assert "backup" not in message
    assert "if DuckDB or Spark reads it" in message


def test_too_little_memory_is_no_damage() -> None:
    error = pa.ArrowMemoryError("malloc of size 4611686018427387904 failed")
    found = make_unreadable_error(order(), error)
    assert isinstance(found, UnsupportedTable)
    assert "give it more memory" in str(found)


def test_what_the_disk_says_is_no_damage_and_may_heal() -> None:
    found = make_unreadable_error(order(), OSError(5, "Input/output error"))
    assert isinstance(found, TransientError)
    assert "version 5, a.parquet" in str(found)


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "brotli"])
def test_pages_that_were_overwritten_are_damage(compression: str) -> None:
    data = bytearray(parquet([{"id": i * 7919} for i in range(5000)], compression=compression,
                             use_dictionary=False))  # fmt: skip
    column = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(0).column(0)
    end = column.data_page_offset + column.total_compressed_size
    data[end - 400 : end] = b"\xa5" * 400
    with pytest.raises(TableError) as refused:
        decoded(bytes(data))
    assert isinstance(refused.value, CorruptLog), refused.value
    assert "restore it from a backup" in str(refused.value)
    assert "pyarrow" not in str(refused.value)


def test_a_checksum_that_does_not_fit_is_damage() -> None:
    data = bytearray(parquet([{"id": i} for i in range(500)], compression="none",
                             use_dictionary=False, write_page_checksum=True))  # fmt: skip
    data[data.index((250).to_bytes(8, "little"))] ^= 1
    message = refusal(lambda: decoded(bytes(data)), CorruptLog)
    assert "CRC" in message
    assert "restore it" in message


def test_a_name_that_is_not_utf_8_is_damage() -> None:
    with pytest.raises(UnicodeDecodeError) as found:
        b"\xff".decode()
    assert shows_damage(found.value)

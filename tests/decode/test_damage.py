"""Data files that pyarrow can't read: what the error says of them."""

from __future__ import annotations

import base64

import pyarrow.parquet.encryption as pe
import pytest

from tailer.errors import UnsupportedTable
from tests.decode.test_rows import decoded, parquet
from tests.feeds import refusal


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

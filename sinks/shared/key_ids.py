"""A text for each key of a copy, by which a store finds the row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import json_values

_ID_BYTES_MAX = 512


def find_ids(keys: pa.Table) -> pa.StringArray:
    """Return the id of each key: the text of a key of one column, a JSON array of the
    values of several. So is that of a text that is empty, or that could be taken for such an array
    or for a hash; and what is longer than 512 bytes is a hash."""
    columns = [column.combine_chunks() for column in keys.columns]
    texts = [json_values(column) for column in columns]
    is_text = pa.types.is_string(columns[0].type)
    return _name_documents(texts, columns[0] if is_text else pc.utf8_trim(texts[0], '"'))


def find_ids_of_texts(keys: pa.Table) -> pa.StringArray:
    """Return the same of keys that are JSON texts already."""
    texts = [column.combine_chunks() for column in keys.columns]
    found = (json.loads(text) if text.startswith('"') else text for text in texts[0].to_pylist())
    return _name_documents(texts, pa.array(found, pa.string()))


def _name_documents(texts: Sequence[pa.StringArray], plain: pa.StringArray) -> pa.StringArray:
    found = pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")
    if len(texts) == 1:
        odd = pc.match_substring_regex(plain, r"^([\[~]|$)")
        found = pc.if_else(odd, found, plain)
    return hash_long_texts(found, _ID_BYTES_MAX, "~")


def hash_long_texts(texts: pa.StringArray, bytes_max: int, mark: str) -> pa.StringArray:
    """Return the texts, those of more bytes as the mark and a hash."""
    long = pc.greater(pc.binary_length(texts), bytes_max)
    if not pc.any(long).as_py():
        return texts
    hashes = [
        f"{mark}{blake2b(text, digest_size=24).hexdigest()}"
        for text in texts.filter(long).cast(pa.binary()).to_pylist()
    ]
    return pc.replace_with_mask(texts, long, pa.array(hashes, pa.string()))

"""Offsets: no text loses anything, and their order is that of the changes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailer.changes import Offset
from tailer.errors import OffsetError

numbers = st.integers(0, 2**63 - 1)
offsets = st.builds(
    Offset,
    version=numbers,
    index=numbers,
    snapshot=st.booleans(),
    table_id=st.none() | st.text(),
    timestamp_floor_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
    delivered_files=st.just(0) | numbers,
    commit_id=st.none() | st.text(),
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FIELDS = [
    "format", "table_id", "version", "index", "snapshot", "timestamp_floor_ms", "delivered_files",
    "commit",
]  # fmt: skip


@given(offsets)
def test_an_offset_survives_its_text_field_by_field(offset: Offset) -> None:
    again = Offset.from_json(json.loads(str(offset)))
    assert again.to_json() == offset.to_json()
    assert str(again) == str(offset)


@given(offsets, offsets)
def test_offsets_are_ordered_as_changes_are(one: Offset, other: Offset) -> None:
    pairs = (one.version, one.index), (other.version, other.index)
    assert (one.position < other.position) == (pairs[0] < pairs[1])
    assert (one == other) == (one.to_json() == other.to_json())


@given(offsets, st.integers(-(2**40), 2**40))
def test_the_next_version_is_after_every_change_of_this_one(offset: Offset, time: int) -> None:
    following = offset.next_version(time)
    assert offset.position < (offset.version, 2**63) < following.position
    assert following.table_id == offset.table_id


@given(documents | offsets.map(Offset.to_json), st.dictionaries(st.sampled_from(FIELDS), documents))
def test_any_damage_is_an_offset_or_an_error_of_offsets(
    document: Any, damage: dict[str, Any]
) -> None:
    if isinstance(document, dict):
        document = {**document, **damage}
    try:
        found = Offset.from_json(document)
    except OffsetError:
        return
    assert found.version >= 0
    assert found.index >= 0
    assert Offset.from_json(json.loads(str(found))) == found

"""Keys go to the partitions to which Kafka's own producers send them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from sinks.kafka.topic_writer import hash_by_murmur2, partitions_of_keys

pytestmark = pytest.mark.usefixtures("way")


@given(st.lists(st.none() | st.binary(max_size=70), max_size=200), st.integers(1, 1000))
def test_keys_go_where_kafka_sends_them(keys: list[bytes | None], count: int) -> None:
    array = pa.array(keys, pa.binary())
    wanted = [kafka_murmur2(key or b"") & 0xFFFFFFFF for key in keys]
    assert hash_by_murmur2(array).to_pylist() == wanted
    found = partitions_of_keys(array, count).to_pylist()
    assert found == [(h & 0x7FFFFFFF) % count for h in wanted]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 31])
def test_many_keys_of_one_length(length: int) -> None:
    numbers = random.Random(length)
    keys = [numbers.randbytes(length) for _ in range(500)]
    sliced = pa.array([b"before", *keys], pa.binary()).slice(1)
    assert hash_by_murmur2(sliced).to_pylist() == [kafka_murmur2(key) & 0xFFFFFFFF for key in keys]

"""The keys of a copy and its rows, and columns that change."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.kv import VALID_KEY_RE

from sinks.formats.json import json_values
from sinks.nats.mirror import NatsMirror
from sinks.shared.key_ids import find_ids, find_ids_of_texts
from tailer.errors import RowsRefused, TransientError
from tailer.sink import make_sink
from tailer.testing.batches import change_batch, empty_batch
from tests.sinks.nats_mirror.conftest import found, names, new, read_ids
from tests.sinks.test_key_types import KEYS
from tests.support.brokers import Nats
from tests.support.pages import blocks
from tests.support.sinks import NAMED, named, rows, write

pytestmark = pytest.mark.anyio


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=700) | st.sampled_from(
    ["", ".", "=", "a.b", "a=2Eb", "a b", "a", "A", '[""]', "[", "~", "*", ">", "=fence", "fence"]
)


async def test_a_reader_gets_and_watches_rows_by_parts_of_their_keys(
    client: Any, bucket: str, options: dict[str, Any]
) -> None:
    schema = pa.schema({"country": pa.string(), "id": pa.int64(), "tags": pa.list_(pa.string())})
    row = {"country": "DE", "id": 5, "tags": ["a", None]}
    batch = change_batch(schema, [row, {**row, "country": "F.R"}], last=True)
    await write(new(options, key=["country", "id"]), batch)
    entries = await client.key_value(bucket)
    assert json.loads((await entries.get("DE.5")).value) == row
    watcher = await entries.watch("F=2ER.*")
    assert (await watcher.updates()).key == "F=2ER.5"
    assert await watcher.updates() is None
    await watcher.stop()


async def test_a_reader_that_lags_gets_all_after_another_start(
    client: Any, bucket: str, options: dict[str, Any]
) -> None:
    await write(new(options), named(count=1))
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    stream, subject = f"KV_{bucket}", f"$KV.{bucket}.>"
    reader = await client.pull_subscribe(subject, stream=stream, config=config)
    await write(new(options), rows((1, "name 1"), version=2))
    await write(new(options), rows((2, "name 2"), version=3))
    got = [each.subject.split(".")[-1] for _ in range(4) for each in await reader.fetch(1)]
    assert got == ["0", "1", "=fence", "2"]


def test_the_page_s_reader_gets_and_watches_rows(nats_server: Nats, tmp_path: Path) -> None:
    _, _, config, program = blocks("docs/sinks/nats.md")
    sink = tomllib.loads(config.text)["feeds"]["orders"]["sink"]
    kind = sink.pop("type")
    options = {**sink, "servers": [nats_server.url()]}
    schema = pa.schema({"order_id": pa.int64()})

    def apply(number: int, version: int, change: str) -> None:
        row = {"order_id": number, "_change_type": change}
        batch = change_batch(schema, [row], version=version, last=True)
        anyio.run(lambda: write(make_sink(kind, options, tmp_path), batch))

    apply(4711, 1, "insert")
    text = program.text.replace("nats://127.0.0.1:4222", nats_server.url())
    command = [sys.executable, "-u", "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        try:
            said = [reader.stdout.readline() for _ in range(3)]
            apply(5, 2, "insert")
            apply(4711, 3, "delete")
            said += [reader.stdout.readline() for _ in range(4)]
        finally:
            reader.kill()
    row = '{"order_id":4711}\n'
    start = "=fence is gone\n"
    assert said[:3] == [row, f"4711 {row}", "these were all\n"]
    assert said[3:] == [start, '5 {"order_id":5}\n', start, "4711 is gone\n"]


@pytest.mark.parametrize(
    "kinds", [("string",), ("string", "string"), *((k,) for k in KEYS)], ids=str
)
@given(data=st.data())
def test_every_key_has_a_name_of_its_own_that_a_bucket_takes(
    kinds: tuple[str, ...], data: Any
) -> None:
    one = st.tuples(*(TEXTS if kind == "string" else KEYS[kind][1] for kind in kinds))
    keys = data.draw(st.lists(one, min_size=1, max_size=8, unique=True))
    columns = [pa.array([key[at] for key in keys], KEYS[kind][0]) for at, kind in enumerate(kinds)]
    table = pa.table(columns, names=[f"k{at}" for at in range(len(kinds))])
    options = {"servers": ["nats://127.0.0.1:1"], "mode": "mirror", "key": ["k0"]}
    sink = make_sink("nats", options, Path())
    assert isinstance(sink, NatsMirror)
    given_names = sink.name_keys(table, find_ids).to_pylist()
    assert len(set(given_names)) == len(keys)
    for name in given_names:
        assert VALID_KEY_RE.match(name)
        assert len(name) <= 1024
        assert "" not in name.split(".")
        assert name != "=fence"
    texts = pa.table([json_values(column) for column in columns], names=table.column_names)
    assert sink.name_keys(texts, find_ids_of_texts).to_pylist() == given_names


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ü", "=C3=BC", "=3DC3=3DBC", "=7E", "~", ".", "=2E"]),
            st.integers(84, 87) | st.integers(169, 173) | st.integers(340, 343),
        ),
        min_size=2, max_size=12, unique=True,
    )
)  # fmt: skip
@example([("ü", 172), ("=C3=BC", 172)])
def test_long_texts_have_names_of_their_own(long: list[tuple[str, int]]) -> None:
    """Also one that is written like the bytes of another."""
    options = {"servers": ["nats://127.0.0.1:1"], "mode": "mirror", "key": ["id"]}
    sink = make_sink("nats", options, Path())
    assert isinstance(sink, NatsMirror)
    keys = pa.table({"id": [unit * count for unit, count in long]})
    given_names = sink.name_keys(keys, find_ids).to_pylist()
    assert len(set(given_names)) == len(long)
    assert all(len(name) <= 1024 and VALID_KEY_RE.match(name) for name in given_names)


def test_a_name_that_would_be_too_long_is_a_hash() -> None:
    options = {"servers": ["nats://127.0.0.1:1"], "mode": "mirror", "key": ["id"]}
    sink = make_sink("nats", options, Path())
    assert isinstance(sink, NatsMirror)
    keys = pa.table({"id": ["ü" * 170, "ü" * 171, "ü" * 172]})  # six characters for each
    whole, *hashed = sink.name_keys(keys, find_ids).to_pylist()
    assert whole == "=C3=BC" * 170
    assert [(name[:6], len(name)) for name in hashed] == [("=7E=7E", 54)] * 2
    assert hashed[0] != hashed[1]


@settings(max_examples=5, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6, unique=True))
def test_rows_are_written_read_back_and_removed_by_any_text(
    nats_server: Nats, texts: list[str]
) -> None:
    schema = pa.schema({"id": pa.string(), "at": pa.int64()})
    given_rows = [{"id": text, "at": at} for at, text in enumerate(texts)]
    options = {"servers": [nats_server.url()], "mode": "mirror", "key": ["id"],
               "bucket": f"t{uuid.uuid4().hex}"}  # fmt: skip
    gone = [{**row, "_change_type": "delete"} for row in given_rows[1:]]

    def read() -> list[str]:
        with new(options).read_mirror("orders") as copy:
            return [json.loads(t) for batch in copy.rows(schema) for t in batch["id"].to_pylist()]

    anyio.run(lambda: write(new(options), change_batch(schema, given_rows, last=True)))
    assert sorted(read()) == sorted(texts)
    later = (
        change_batch(schema, gone, version=2, last=True) if gone else empty_batch(schema, version=2)
    )
    anyio.run(lambda: write(new(options), later))
    assert read() == texts[:1]


async def test_a_row_that_is_too_large_is_refused_for_itself(
    nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(RowsRefused, match=r"version 1: the event 1 has .* increase max_payload"):
        await sink.write(rows((1, "x" * 1_100_000)))
    await sink.write(named())
    await sink.aclose()
    assert set(found(nats_server, bucket)) == {"0", "1"}


async def test_rows_of_several_answers_are_checked_and_read_back(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    """As Spark writes `id = id + 1`: a key comes long before it leaves."""
    count = 1500
    await write(new(options), named(count=count))
    images = []
    for number in range(count):
        images.append({"id": number, "name": f"{number}", "_change_type": "update_preimage"})
        images.append({"id": number + 1, "name": "moved", "_change_type": "update_postimage"})
    await write(new(options), change_batch(NAMED, images, version=2, last=True))
    assert set(found(nats_server, bucket)) == {str(number + 1) for number in range(count)}
    assert len(read_ids(new(options))) == count
    state = (await client.stream_info(f"KV_{bucket}")).state
    assert (
        state.messages == count + 2
    )  # and the markers of the key that left, and of the second claim


async def test_a_feed_goes_on_after_a_repair(
    nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    """It is interrupted, as by anybody else who writes there."""
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    with new(options).repair_mirror("orders") as mirror:
        mirror.replace(rows((1, "right")))
    with pytest.raises(TransientError, match="the feed restarts from the state found there"):
        await sink.write(named(2, version=2))
    assert await sink.open("orders") == named().next_offset
    await sink.write(named(2, version=2))
    await sink.aclose()
    assert names(nats_server, bucket)["1"] == "right"
    assert set(found(nats_server, bucket)) == {"0", "1", "2", "3"}

"""Lists of numbers as pgvector's vectors, on a real server with the extension."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.cli.main import main
from tailer.errors import ConfigError, RowsRefused, SinkRejected
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tailer.testing.table import TableBuilder
from tests.support.extent import examples
from tests.support.pages import blocks
from tests.support.postgres import Postgres
from tests.support.sinks import write

pytestmark = pytest.mark.anyio
#: What a number of each of pgvector's types is packed as.
PACKED = {"vector": "f", "halfvec": "e"}
NUMBERS = {
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
}


@pytest.fixture
def schema(pgvector: Postgres) -> str:
    return pgvector.schema()


def new(server: Postgres, schema: str, **more: Any) -> Sink:
    # Where the extension is, and nothing else: `public`.
    options = {"dsn": server.dsn(), "schema": schema, "key": ["id"], **more}
    return make_sink("postgres", options, Path())


def build_table(numbers: pa.DataType) -> pa.Schema:
    return pa.schema({"id": pa.int64(), "embedding": pa.list_(numbers)})


def rounded(value: float, kind: str) -> float | None:
    """A number as the vector has it; None: it can't have it."""
    try:
        (found,) = struct.unpack(PACKED[kind], struct.pack(PACKED[kind], value))
    except OverflowError:
        return None
    return found if abs(found) < float("inf") else None  # also for NaN


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("kind", PACKED)
def test_a_vector_has_the_numbers_or_is_refused(
    pgvector: Postgres, kind: str, data: st.DataObject
) -> None:
    schema = pgvector.schema()
    numbers = data.draw(st.sampled_from([*NUMBERS]))
    vector = st.lists(NUMBERS[numbers], min_size=2, max_size=2)
    given = data.draw(st.lists(st.none() | vector, min_size=1, max_size=4))
    table = build_table(numbers)
    rows = [{"id": place, "embedding": one} for place, one in enumerate(given)]
    # What Python packs by way of a double is rounded once; what we cast, by way of a single.
    held = [None if one is None else [rounded(rounded(n, "vector") or 0.0, kind) for n in one]
            for one in given]  # fmt: skip
    beyond = [any(rounded(n, "vector") is None for n in one or ()) for one in given]
    fits = not any(beyond) and not any(None in (one or ()) for one in held)
    sink = new(pgvector, schema, vectors={"embedding": f"{kind}(2)"})
    batch = change_batch(table, rows, last=True)
    if not fits:
        with pytest.raises(
            RowsRefused, match=r"the column 'embedding' has a list with .* does not"
        ):
            anyio.run(lambda: write(sink, batch))
        return
    anyio.run(lambda: write(sink, batch))
    found = pgvector.query(f"SELECT embedding::vector::real[] FROM {schema}.orders ORDER BY id")
    # The server prints a single as shortly as it is one.
    got = [None if row is None else [rounded(n, "vector") for n in row] for (row,) in found]
    assert got == held
    with sink.read_mirror("orders") as copy:
        read = pa.Table.from_batches(copy.rows(table)).sort_by("id")
        expected = copy.as_held("embedding", pa.array(given, pa.list_(numbers)))
        assert read["embedding"].combine_chunks().equals(expected.cast(pa.string()))


@pytest.mark.parametrize(
    ("numbers", "value", "said"),
    [
        (pa.float32(), [1.0], "version 1: the column 'embedding' has a list of 1, and vector(2)"),
        (pa.float32(), [], "version 1: the column 'embedding' has a list of 0, and vector(2)"),
        (pa.float32(), [1.0, None], "version 1: the column 'embedding' has a list with null, "),
        (pa.string(), ["1", "2"], "the column 'embedding' has the type list<"),
    ],
    ids=str,
)
async def test_what_is_no_vector_is_refused_by_name(
    pgvector: Postgres, schema: str, numbers: pa.DataType, value: Any, said: str
) -> None:
    batch = change_batch(
        build_table(numbers), [{"id": 1, "embedding": None}, {"id": 2, "embedding": value}],
        last=True,
    )  # fmt: skip
    with pytest.raises(SinkRejected) as refused:
        await write(new(pgvector, schema, vectors={"embedding": "vector(2)"}), batch)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        ({"embedding": "vector"}, "embedding is 'vector', and should be"),
        ({"embedding": "vector(0)"}, "embedding is 'vector(0)', and should be"),
        ({"embedding": "vector(16001)"}, 'should be "vector(N)" or "halfvec(N)" with up to'),
        ({"embedding": 3}, "embedding is 3, and should be"),
        ({"id": "vector(3)"}, "id is a key column, and vectors identify no row"),
    ],
)  # fmt: skip
def test_an_option_that_is_wrong(pgvector: Postgres, vectors: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        new(pgvector, "public", vectors=vectors)
    assert said in str(wrong.value)


async def test_a_vector_that_no_column_is_for(pgvector: Postgres, schema: str) -> None:
    sink = new(pgvector, schema, vectors={"embeddings": "vector(2)"})
    with pytest.raises(
        SinkRejected, match="names 'embeddings', and the table has the columns id, em"
    ):
        await sink.rehearse("orders", build_table(pa.float32()))


async def test_a_vector_whose_column_comes_later(pgvector: Postgres, schema: str) -> None:
    vectors = {"embedding": "vector(2)"}
    without = pa.schema({"id": pa.int64()})
    first = change_batch(without, [{"id": 1}], last=True)
    second = change_batch(
        build_table(pa.float32()), [{"id": 2, "embedding": [1, 2]}], version=2, last=True
    )
    await write(new(pgvector, schema, vectors=vectors), first, second)
    found = pgvector.query(f"SELECT id, embedding <-> '[1,4]' FROM {schema}.orders ORDER BY id")
    assert found == [(1, None), (2, 2.0)]


@pytest.mark.parametrize("mode", ["history", "log"])
async def test_vectors_of_every_version(pgvector: Postgres, schema: str, mode: str) -> None:
    key = [] if mode == "log" else ["id"]
    vectors = {"embedding": "halfvec(1)"}
    given = [
        [{"id": 1, "embedding": [1]}],
        [
            {"id": 1, "embedding": [1], "_change_type": "update_preimage"},
            {"id": 1, "embedding": [2], "_change_type": "update_postimage"},
        ],
    ]
    batches = [
        change_batch(build_table(pa.float64()), rows, version=number, last=True)
        for number, rows in enumerate(given, start=1)
    ]
    await write(new(pgvector, schema, mode=mode, key=key, vectors=vectors), *batches)
    found = pgvector.query(f"SELECT embedding::text FROM {schema}.orders")
    wanted = ["[1]", "[1]", "[2]"] if mode == "log" else ["[1]", "[2]"]
    assert sorted(text for (text,) in found) == wanted


async def test_rows_with_large_vectors_become_text_a_few_at_a_time(
    pgvector: Postgres, schema: str
) -> None:
    table, count = build_table(pa.float32()), 600
    rows = [{"id": n, "embedding": [n + 0.12345678] * 16000} for n in range(count)]
    sink = new(pgvector, schema, vectors={"embedding": "vector(16000)"})
    batch = change_batch(table, rows, last=True)
    await write(sink, batch)
    with sink.read_mirror("orders") as copy:
        sizes = [page.num_rows for page in copy.rows(table)]
    assert sum(sizes) == count
    assert max(sizes) < 50


async def test_a_database_without_the_extension_is_told_what_it_lacks(pgvector: Postgres) -> None:
    pgvector.query("CREATE DATABASE plain")
    sink = make_sink(
        "postgres",
        {"dsn": pgvector.dsn(dbname="plain"), "key": ["id"], "vectors": {"embedding": "vector(2)"}},
        Path(),
    )
    with pytest.raises(SinkRejected, match='type "vector" does not exist; run CREATE EXTENSION'):
        await sink.rehearse("orders", build_table(pa.float32()))


async def test_rows_are_changed_and_repaired(pgvector: Postgres, schema: str) -> None:
    table, vectors = build_table(pa.float32()), {"embedding": "halfvec(2)"}
    rows = [{"id": 1, "embedding": [1, 2]}, {"id": 2, "embedding": [3, 4]}]
    await write(new(pgvector, schema, vectors=vectors), change_batch(table, rows, last=True))
    changed = [
        {"id": 1, "embedding": [1, 2], "_change_type": "update_preimage"},
        {"id": 1, "embedding": [5, 6], "_change_type": "update_postimage"},
        {"id": 2, "embedding": [3, 4], "_change_type": "delete"},
    ]
    sink = new(pgvector, schema, vectors=vectors)
    await write(sink, change_batch(table, changed, version=2, last=True))
    query = f"SELECT id, embedding <-> '[5,7]' FROM {schema}.orders"
    assert pgvector.query(query) == [(1, 1.0)]
    pgvector.query(f"UPDATE {schema}.orders SET embedding = '[0,0]'")
    with sink.repair_mirror("orders") as mirror:
        mirror.replace(change_batch(table, [{"id": 1, "embedding": [5, 6]}]))
    assert pgvector.query(query) == [(1, 1.0)]


def test_the_page_on_vectors(
    pgvector: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pgvector.query("CREATE DATABASE documents")
    dsn = pgvector.dsn(dbname="documents")
    columns = {"id": pa.int64(), "body": pa.string(), "embedding": pa.list_(pa.float32())}
    table = TableBuilder(tmp_path / "documents", pa.schema(columns), cdf=True)
    table.create()

    def document(key: int, body: str, kind: str = "insert", at: float = 0.5) -> dict[str, Any]:
        return {"id": key, "body": body, "embedding": [at] * 384, "_change_type": kind}

    first = table.add([document(1, "a"), document(2, "b")])
    table.commit(first)
    texts = [block.text for block in blocks("docs/sinks/postgres.md", "toml")[1:]]
    page = "\n".join(texts).replace("/data/", f"{tmp_path}/")
    page = page.replace('"host=db.example.org user=tailer dbname=lake"', f'"{dsn}"')
    Path("tailer.toml").write_text(f'[daemon]\nhttp = ""\n{page}')
    (work,) = blocks("docs/sinks/postgres.md", "sql")
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute("CREATE EXTENSION vector")
        database.execute("CREATE TABLE embeddings (id bigint PRIMARY KEY, embedding vector(3))")
        database.execute("INSERT INTO embeddings VALUES (1, '[1,1,1]'), (2, '[2,2,2]')")
        assert main(["run", "tailer.toml", "--once"]) == 0
        nearest = "ORDER BY embedding <-> array_fill(0.1, ARRAY[384])::vector"
        assert len(database.execute(f"SELECT id FROM documents {nearest}").fetchall()) == 2

        def do_work() -> list[tuple[Any, ...]]:
            found = database.execute(work.text)
            while not found.description:
                assert found.nextset()
            return found.fetchall()

        assert do_work() == [(1, "a", "insert"), (2, "b", "insert")]
        # The page's worker stores for 1, and deletes for 2.
        assert database.execute("SELECT * FROM embeddings").fetchall() == [(1, "[0.1,0.2,0.3]")]
        # A vector that moved is no other text.
        second = table.add([document(1, "a", at=0.25), document(2, "c")])
        changes = [
            document(1, "a", "update_preimage"),
            document(1, "a", "update_postimage", at=0.25),
            document(2, "b", "update_preimage"),
            document(2, "c", "update_postimage"),
        ]
        table.commit(table.remove(first), second, table.cdc(changes))
        assert main(["run", "tailer.toml", "--once"]) == 0
        assert do_work() == [(2, "b", "update_preimage")]
        assert do_work() == [(2, "c", "update_postimage")]
        assert do_work() == []
        assert main(["verify", "tailer.toml", "documents"]) == 0

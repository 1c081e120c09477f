"""The schemas of `protobuf` in a real registry."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pytest

from sinks.formats.registry import RegistryClient
from tailer.errors import SinkRejected, TransientError
from tests.hostile.lies import lies_of
from tests.sinks.formats import all_types
from tests.sinks.protobuf_tables import (
    HISTORIES,
    ID,
    OTHERS,
    TEXT,
    UPSERT,
    batch_of,
    encode_all,
    encoder,
    struct,
    values,
)
from tests.support.link import running_link
from tests.support.protobuf import read_message
from tests.support.registry import Gateway, Registry

real = pytest.mark.needs("registry")


def fresh() -> str:
    return f"orders/{uuid4().hex[:8]} ü"


def backward(registry: Registry) -> RegistryClient:
    status, _ = registry.call("PUT", "/config", '{"compatibility":"BACKWARD"}')
    assert status == 200
    return RegistryClient(registry.url)


def schema_of(registry: Registry, value: bytes) -> str:
    status, answer = registry.call("GET", f"/schemas/ids/{int.from_bytes(value[1:5], 'big')}")
    assert status == 200
    return str(json.loads(answer)["schema"])


@pytest.mark.java
@real
@pytest.mark.parametrize("name", HISTORIES)
def test_a_registry_takes_every_table_s_history(registry: Registry, name: str) -> None:
    client, topic, tables = backward(registry), fresh(), HISTORIES[name]
    options = {"topic": topic, "key": [tables[0][0][0]]} if name != "renamed" else {"topic": topic}
    kept = [columns for columns in tables if not options.get("key") or tables[0][0] in columns]
    first = encode_all(client, kept, **options)
    assert encode_all(RegistryClient(registry.url), kept, **options) == first
    looking = RegistryClient(registry.url, auto_register=False)
    assert encode_all(looking, kept, **options) == first
    for columns, (_, (value,)) in zip(kept, first, strict=True):
        found = read_message(schema_of(registry, value), value[6:])
        assert all(found[column] is not None for column, _ in columns)
    path = f"/subjects/{quote(topic + '-value', safe='')}/versions"
    assert len(json.loads(registry.call("GET", path)[1])) <= len(tables)


@pytest.mark.java
@real
@pytest.mark.parametrize("envelope", ["rows", "debezium", "upsert"])
def test_every_type_has_a_schema_that_a_registry_takes(registry: Registry, envelope: str) -> None:
    options = {"topic": fresh(), "key": ["id", "date"], "envelope": envelope, "table": "1 t"}
    batch = all_types(paired=envelope != "rows")
    records = encoder(backward(registry), **options).encode(batch)
    value = values(records)[0]
    assert read_message(schema_of(registry, value), value[6:])


@pytest.mark.java
@real
@pytest.mark.parametrize(
    "other", [pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), struct(ID)], ids=str
)
def test_a_column_of_another_type_is_refused_by_name(
    registry: Registry, other: pa.DataType
) -> None:
    made = encoder(backward(registry), topic=fresh())
    made.encode(batch_of(ID, ("v", pa.int64())))
    for _ in range(2):
        with pytest.raises(SinkRejected, match=r"'v' is .*, and int64 in an earlier"):
            made.encode(batch_of(ID, ("v", other)))
    assert made.encode(batch_of(ID)).num_records == 1


@pytest.mark.java
@real
def test_a_registry_takes_your_own_schema_with_more_columns(registry: Registry) -> None:
    client, topic = backward(registry), fresh()
    own = f"""// ours
        syntax = "proto3"; package feed.orders; import "google/protobuf/any.proto";
        message Value {{ {OTHERS} optional int64 id = 9; L l = 7;
          message L {{ repeated E element = 1; message E {{ optional string value = 3; }} }} }}
        message Spare {{ optional int64 q = 1; }}"""
    assert client.register(f"{topic}-value", own, kind="PROTOBUF")
    columns = [ID, ("l", pa.list_(struct(("value", pa.string())))), TEXT, ("s", struct(ID))]
    with pytest.raises(SinkRejected, match=r"'l\.element\.value' is struct, and string"):
        encode_all(client, [columns], topic=topic, **UPSERT)
    columns[1] = ("l", pa.list_(pa.string()))
    ((_, (value,)),) = encode_all(client, [columns], topic=topic, **UPSERT)
    assert " v = 17;" in schema_of(registry, value)
    assert client.list_versions(f"{topic}-value") == [1, 2]


@pytest.mark.java
@real
def test_a_date_does_not_become_a_time_unseen(registry: Registry) -> None:
    made = encoder(backward(registry), topic=fresh())
    made.encode(batch_of(("v", pa.date32())))
    with pytest.raises(SinkRejected, match="'v' is sfixed64, and sint32 in an earlier"):
        made.encode(batch_of(("v", pa.timestamp("us"))))


@pytest.mark.java
@real
def test_without_auto_register_nothing_is_registered(registry: Registry) -> None:
    client, topic = RegistryClient(registry.url, auto_register=False), fresh()
    for _ in range(2):
        with pytest.raises(SinkRejected, match="auto_register is off; register it first"):
            encode_all(client, [[ID]], topic=topic)


@pytest.mark.java
@real
def test_versions_that_nobody_shows_are_waited_for(registry: Registry) -> None:
    with Gateway(registry, "Bearer t") as gateway:  # it lets no GET pass
        client = RegistryClient(gateway.url, "Bearer t")
        with pytest.raises(TransientError, match=r"schema registry at .* answers with status 501"):
            encode_all(client, [[ID]], topic=fresh())


@pytest.mark.java
@real
@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("silence", r"does not answer \(no whole answer in 1 s\)"),
        ("half an answer", r"does not answer \(it ended the connection\)"),
        ("chunks without end", "too large an answer"),
        ("403 with a page", "status 403, without a registry's message; .*, its credentials"),
        ("an id of 2^40", "status 200, without an id"),
    ],
)
def test_what_no_registry_answers_may_heal(registry: Registry, lie: str, said: str) -> None:
    topic = fresh()
    first = encode_all(backward(registry), [[ID]], topic=topic)
    with running_link(registry.port) as link:
        url = registry.url.replace(str(registry.port), str(link.port))
        client = RegistryClient(url, timeout_s=1 if "no whole answer" in said else 100)
        link.answer_by(lies_of("registry")[lie])
        with pytest.raises(TransientError, match=said):
            client.list_versions(f"{topic}-value")
        with pytest.raises(TransientError, match=said):
            client.read_version(f"{topic}-value", 1)
        with pytest.raises(TransientError, match=said):
            encode_all(client, [[ID]], topic=topic)
        link.heal()
        assert encode_all(client, [[ID]], topic=topic) == first


@pytest.mark.java
@real
@pytest.mark.parametrize("error", [40401, 40402])
def test_a_version_that_is_gone_is_looked_for_again(registry: Registry, error: int) -> None:
    client, topic = backward(registry), fresh()
    encode_all(client, [[ID]], topic=topic)
    gone = f"{topic}-value" if error == 40402 else fresh()
    with pytest.raises(TransientError, match=r"lists version 99 of '.*' without it"):
        client.read_version(gone, 99)
    assert client.list_versions(fresh()) == []


@pytest.mark.java
@real
@pytest.mark.parametrize(
    ("part", "answer", "said"),
    [
        ("/versions/1", {"subject": "another"}, "version 1 of 'another' for version 1 of"),
        ("/versions/1", {"version": 2}, "answers with version 2 of"),
        ("/versions/1", {"id": 987_654_321}, "the id 987654321, under which it has no schema"),
        ("/versions/1", {"schema": "message A { }"}, "under which it has another schema"),
        ("/versions/1", {"schemaType": "AVRO"}, "under which it has another schema"),
        ("/versions/1", {"id": 0}, "status 200, without an id"),
        ("/schemas/ids/", {"schema": "message A { }"}, "under which it has another schema"),
    ],
)
def test_a_version_is_believed_if_its_id_has_it(
    registry: Registry, part: str, answer: dict[str, Any], said: str
) -> None:
    """Behind a proxy that answers with others for a while; nothing of that is kept."""
    topic = fresh()
    first = encode_all(backward(registry), [[ID]], topic=topic)
    lies = dict(answer)

    class Proxied(RegistryClient):
        def _ask_registry(self, method: str, path: str, body: Any = None) -> Any:
            found = super()._ask_registry(method, path, body)
            if part in path:
                found.document.update(lies)
            return found

    made = encoder(Proxied(registry.url), topic=topic)
    for _ in range(2):
        with pytest.raises(TransientError, match=said):
            made.encode(batch_of(ID))
    lies.clear()
    assert values(made.encode(batch_of(ID))) == first[0][1]


@pytest.mark.java
@real
def test_a_subject_of_another_kind_is_said_so(registry: Registry) -> None:
    client, topic = backward(registry), fresh()
    assert client.register(f"{topic}-value", '"string"')
    with pytest.raises(SinkRejected, match=r"^version 1 \(AVRO\) of subject .* can extend"):
        encode_all(client, [[ID]], topic=topic)

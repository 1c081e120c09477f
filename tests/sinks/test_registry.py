"""The registry client and the Avro format against a real registry."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pyarrow as pa
import pytest

from sinks.formats.load import load_encoder
from sinks.formats.registry import RegistryClient, load_registry
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.sink.encoder import Encoder
from tailer.testing.batches import change_batch
from tests.hostile.lies import lies_of
from tests.support.link import running_link
from tests.support.registry import Gateway, Registry, make_certificate

pytestmark = [pytest.mark.java, pytest.mark.needs("registry")]

LONG = '{"type":"record","name":"V","fields":[{"name":"a","type":"long"}]}'
TEXT = '{"type":"record","name":"V","fields":[{"name":"a","type":"string"}]}'
NARROW = pa.schema([("id", pa.int64()), ("v", pa.string())])


def fresh() -> str:
    return f"orders/{uuid4().hex[:8]} ü"


def avro(registry: Registry, topic: str, **options: Any) -> Encoder:
    return load_encoder("avro", {"registry": {"url": registry.url}, "topic": topic, **options})


def backward(registry: Registry) -> None:
    status, _ = registry.call("PUT", "/config", '{"compatibility":"BACKWARD"}')
    assert status == 200


def test_a_schema_is_registered_once_under_its_subject(registry: Registry) -> None:
    client, subject = RegistryClient(registry.url), fresh()
    first = client.register(subject, LONG)
    assert client.register(subject, LONG) == first
    status, answer = registry.call("GET", f"/schemas/ids/{first}")
    assert status == 200
    assert json.loads(json.loads(answer)["schema"]) == json.loads(LONG)


def test_an_incompatible_schema_is_refused_by_name(registry: Registry) -> None:
    backward(registry)
    client, subject = RegistryClient(registry.url), fresh()
    client.register(subject, LONG)
    with pytest.raises(SinkRejected, match="as incompatible with an earlier one") as refused:
        client.register(subject, TEXT)
    assert subject in str(refused.value)
    assert registry.url in str(refused.value)


def test_what_is_no_schema_is_refused_by_name(registry: Registry) -> None:
    with pytest.raises(SinkRejected, match="refuses the schema of subject 'x'"):
        RegistryClient(registry.url).register("x", '{"type":"none such"}')


def test_without_auto_register_a_schema_is_only_looked_up(registry: Registry) -> None:
    client = RegistryClient(registry.url, auto_register=False)
    subject = fresh()
    with pytest.raises(SinkRejected, match="auto_register is off; register it first"):
        client.register(subject, LONG)
    number = RegistryClient(registry.url).register(subject, LONG)
    assert client.register(subject, LONG) == number


def test_records_are_read_with_the_schema_that_the_registry_has(registry: Registry) -> None:
    made = avro(registry, fresh(), key=["id"])
    records = made.encode(change_batch(NARROW, [{"id": 2**62, "v": "x"}]))
    value = records.whole_values()[0].as_py()
    status, answer = registry.call("GET", f"/schemas/ids/{int.from_bytes(value[1:5], 'big')}")
    assert status == 200
    schema = fastavro.parse_schema(json.loads(json.loads(answer)["schema"]))
    found: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema)
    assert (found["id"], found["v"], found["_change_type"]) == (2**62, "x", "insert")


def test_schemas_follow_a_table_that_gains_and_loses_columns(registry: Registry) -> None:
    backward(registry)
    topic = fresh()
    made = avro(registry, topic, table="t")
    wider = pa.schema([*NARROW, ("n", pa.decimal128(9, 2))])
    shorter = pa.schema([wider.field("id"), wider.field("n")])
    for schema in (NARROW, wider, shorter):
        made.encode(change_batch(schema, [{"id": 1}]))
    from urllib.parse import quote

    path = f"/subjects/{quote(topic + '-value', safe='')}/versions"
    assert json.loads(registry.call("GET", path)[1]) == [1, 2, 3]


def test_a_column_that_changes_its_type_is_refused_and_nothing_encoded(registry: Registry) -> None:
    backward(registry)
    made = avro(registry, fresh(), table="t")
    made.encode(change_batch(NARROW, [{"id": 1}]))
    other = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    for _ in range(2):
        with pytest.raises(SinkRejected, match="refuses the schema of subject"):
            made.encode(change_batch(other, [{"id": 1, "v": 2}]))
    assert made.encode(change_batch(NARROW, [{"id": 2}])).num_records == 1


@pytest.mark.parametrize("envelope", ["rows", "debezium"])
def test_every_type_has_a_schema_that_a_registry_takes(registry: Registry, envelope: str) -> None:
    from tests.sinks.formats import all_types

    made = avro(registry, fresh(), key=["id", "date"], envelope=envelope, table="1 t")
    assert made.encode(all_types()).num_records == 4


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"user": "u", "password": "p:ä"}, "Basic dTpwOsOk"),
        ({"token": "secret"}, "Bearer secret"),
    ],
)
def test_credentials_are_sent_and_never_shown(
    registry: Registry, options: dict[str, Any], header: str
) -> None:
    with Gateway(registry, header) as gateway:
        client = load_registry({"url": gateway.url, **options})
        assert client.register(fresh(), LONG) > 0
        assert header.split()[1] not in repr(client)
        wrong = load_registry({"url": gateway.url, "token": "other"})
        with pytest.raises(SinkRejected, match="check its credentials") as refused:
            wrong.register("x", LONG)
        assert "other" not in str(refused.value)


def test_a_certificate_is_verified(registry: Registry, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with Gateway(registry, "Bearer t", certificate) as gateway:
        options = {"url": gateway.url, "token": "t"}
        with pytest.raises(SinkRejected, match=r"is not trusted .*; set ca_file"):
            load_registry(options).register("x", LONG)
        trusting = load_registry({**options, "ca_file": certificate[0].name}, tmp_path)
        assert trusting.register(fresh(), LONG) > 0


def test_a_registry_that_does_not_answer_may_heal() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(TransientError, match=r"nothing listens at 127.*; check its URL"):
            RegistryClient(url).register("x", LONG)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("silence", r"does not answer \(no whole answer in 1 s\)"),
        ("100 Continue for ever", r"does not answer \(no whole answer in 1 s\)"),
        ("half an answer", r"does not answer \(it ended the connection\)"),
        ("chunks without end", "too large an answer"),
        ("403 with a page", "status 403, without a registry's message; .*, its credentials"),
        ("an id of 2^40", "status 200, without an id"),
        ("an id of another schema", "the id 7, under which it has another schema"),
        ("an id of no schema", "the id 7, under which it has no schema"),
    ],
)
def test_what_no_registry_answers_may_heal(registry: Registry, lie: str, said: str) -> None:
    with running_link(registry.port) as link:
        url = registry.url.replace(str(registry.port), str(link.port))
        client, subject = RegistryClient(url, timeout_s=100), fresh()
        hasty = RegistryClient(url, timeout_s=1) if "no whole answer" in said else client
        link.answer_by(lies_of("registry")[lie])
        with pytest.raises(TransientError, match=said):
            hasty.register(subject, LONG)
        link.heal()
        assert client.register(subject, LONG) > 0


def test_an_id_is_believed_where_nobody_may_look_it_up(registry: Registry) -> None:
    with Gateway(registry, "Bearer t") as gateway:  # it lets no GET pass
        client = load_registry({"url": gateway.url, "token": "t"})
        assert client.register(fresh(), LONG) > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "http://x", "user": "a", "token": "b"}, "both a user and a token"),
        ({"url": "https://x", "ca_file": "nowhere.pem"}, "a TLS file .* can't be read"),
        (
            {"url": "http://x", "tokn": "x"},
            r"'tokn' of the schema registry is not known \(did you mean",
        ),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_registry(options)

"""Options that would change what readers of a topic count on: refused until they are accepted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sinks.kafka.sink import KafkaSink
from tailer.changes import Offset
from tailer.errors import ConfigError
from tailer.testing.batches import empty_batch
from tests.kafka.broker import Broker
from tests.kafka.sinks import SCHEMA, batch, fresh, made, opened, refused
from tests.kafka.test_operator import configured, orders
from tests.kafka.topics import admin, create_topic
from tests.support.feeds import position_of
from tests.support.programs import run_tailer, started

CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"key": ["name"]}, 'key from ["id"] to ["name"]'),
    ({"key": ["id"], "format": "debezium"}, 'format from "rows" to "debezium"'),
    ({"key": ["id"], "ids": True}, "ids from false to true"),
    ({"key": ["id"], "topic": "other"}, "the new topic gets only later changes"),
]


def other(kafka: Broker, topic: str, change: dict[str, Any], **options: Any) -> KafkaSink:
    """The sink of the same feed with other options."""
    own = {"progress_topic": f"{topic}-progress", "transactional_id": f"{topic}-writer"}
    name = f"{topic}-{change['topic']}" if "topic" in change else topic
    rest = {key: value for key, value in change.items() if key != "topic"}
    return made(kafka.bootstrap, name, **own, **rest, **options)


@pytest.mark.anyio
@pytest.mark.parametrize(("change", "said"), CHANGES)
async def test_a_change_is_accepted_once(kafka: Broker, change: dict[str, Any], said: str) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, key=["id"]) as (sink, _):
        await sink.write(batch(1, [1]))
    for ask in ("look", "open"):
        changed = other(kafka, topic, change)
        with pytest.raises(ConfigError) as caught:
            await getattr(changed, ask)("orders")
        await changed.aclose()
        assert said in str(caught.value)
        assert "at version 2, where feed 'orders' resumes" in str(caught.value)
        assert "`tailer offsets set --from 2 --index 0`" in str(caught.value)
    assert f"{topic}-other" not in admin(kafka.bootstrap).list_topics().topics
    await other(kafka, topic, change).set_offset("orders", Offset(2))
    again = other(kafka, topic, change)
    assert position_of(await again.look("orders")) == (2, 0)
    assert position_of(await again.open("orders")) == (2, 0)
    await again.write(batch(2, [2]))
    await again.aclose()
    assert "change" in await refused(made(kafka.bootstrap, topic, key=["id"]), ConfigError)


@pytest.mark.anyio
async def test_before_the_first_record_options_may_change(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, key=["nr"]) as (sink, _):
        await sink.write(empty_batch(SCHEMA, version=1))
    async with opened(kafka.bootstrap, topic, key=["id"]) as (sink, offset):
        assert position_of(offset) == (2, 0)
        await sink.write(batch(2, [1]))
    await refused(made(kafka.bootstrap, topic, key=["name"]), ConfigError)


@pytest.mark.anyio
async def test_other_bytes_of_keys_are_noticed(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, keyless = fresh(), fresh()
    for name, key in ((topic, ["id"]), (keyless, [])):
        async with opened(kafka.bootstrap, name, key=key) as (sink, _):
            await sink.write(batch(1, [1]))
    monkeypatch.setattr("sinks.shared.record_form.KEY_ENCODING", 2)
    sentence = await refused(made(kafka.bootstrap, topic, key=["id"]), ConfigError)
    assert "this release changes the encoding of keys from 1 to 2 at version 2" in sentence
    async with opened(kafka.bootstrap, keyless) as (_, offset):
        assert position_of(offset) == (2, 0)


@pytest.mark.anyio
async def test_an_offset_can_be_set_whatever_the_options_say(kafka: Broker) -> None:
    topic = fresh()
    async with opened(kafka.bootstrap, topic, key=["id"]) as (sink, _):
        await sink.write(batch(1, [1]))
    assert "key" in await refused(made(kafka.bootstrap, topic, key=["name"]), ConfigError)
    await made(kafka.bootstrap, topic, key=["name"]).set_offset("orders", Offset(1))
    async with opened(kafka.bootstrap, topic, key=["name"]) as (_, offset):
        assert position_of(offset) == (1, 0)


# --- the programs


def finds(config: Path, said: str) -> None:
    """`tailer check` says what `tailer run` would, both with status 2 and in plain words."""
    for command in ("check", "run"):
        done = run_tailer(command, config)
        text = done.stdout + done.stderr
        assert done.returncode == 2, text
        assert said in text
        for internal in ("Request", "Error", "error_code", "Traceback"):
            assert internal not in text.splitlines()[-1]


@pytest.mark.timeout(180)
def test_what_the_brokers_would_refuse(kafka: Broker, tmp_path: Path) -> None:
    orders(tmp_path)
    wrong = {"transaction_timeout_ms": 10**9}
    finds(configured(tmp_path, kafka.bootstrap, fresh(), **wrong), "allow 900000; lower it")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transaction_timeout_ms": 10**9}, "allow 900000; lower it"),
        ({"notice_topic": "{feed}", "feed": "a b"}, "'a b'"),
    ],
)
async def test_a_look_says_what_a_start_would(
    kafka: Broker, options: dict[str, Any], said: str
) -> None:
    topic = fresh()
    create_topic(kafka.bootstrap, f"{topic}-progress", cleanup_policy="compact")
    feed, own = options.get("feed", "orders"), {k: v for k, v in options.items() if k != "feed"}
    for ask in ("look", "open"):
        sink = made(kafka.bootstrap, topic, **own)
        with pytest.raises(ConfigError, match=said) as caught:
            await getattr(sink, ask)(feed)
        await sink.aclose()
        assert not re.search(r"Request|Error|error_code|\[", str(caught.value))


@pytest.mark.timeout(180)
def test_what_an_offset_store_remembers_of_the_records(kafka: Broker, tmp_path: Path) -> None:
    """At least once, where progress is not in Kafka."""
    orders(tmp_path)
    topic = fresh()

    def feed(key: str, **more: Any) -> Path:
        own = {"delivery": "at-least-once", "key": [key], **more}
        return configured(tmp_path, kafka.bootstrap, topic, **own)

    def run_until_kept(config: Path, key: str) -> str:
        state = tmp_path / "state" / "orders.offset.json"
        with started("run", config) as program:

            def kept() -> bool:
                found = json.loads(state.read_text()) if state.exists() else {}
                by = found.get("orders", {}).get("delivery", {}).get("key")
                return bool(by == [key] and found["offset"]["version"] == 4)

            program.wait_for(kept)
            assert program.stop() == 0
            return "".join(program.errors)

    run_until_kept(feed("id"), "id")
    finds(feed("name"), 'key from ["id"] to ["name"] at version 4')
    accepted = run_tailer("offsets", "set", feed("name"), "orders", "--from", "4")
    assert accepted.returncode == 0, accepted.stderr
    assert run_tailer("check", feed("name")).returncode == 0

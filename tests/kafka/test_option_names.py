"""Options under the names that other Kafka clients have, and values that no broker takes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sinks.kafka.options import KafkaOptions
from tailer.errors import ConfigError

OURS = {"bootstrap_servers": "127.0.0.1:9092", "topic": "t"}


def taken(options: dict[str, Any]) -> KafkaOptions:
    return KafkaOptions.take(options, Path())


@pytest.mark.parametrize(
    "text",
    [
        """
        bootstrap.servers = "b:1"
        topic = "t"
        client.id = "me"
        security.protocol = "SASL_PLAINTEXT"
        sasl = {mechanisms = "PLAIN", username = "u", password = "p"}
        compression.type = "gzip"
        linger.ms = 7
        batch.size = 5000
        message.timeout.ms = 40000
        """,
        """
        "metadata.broker.list" = "b:1"
        topic = "t"
        client_id = "me"
        security_protocol = "SASL_PLAINTEXT"
        sasl_mechanism = "PLAIN"
        sasl_plain_username = "u"
        sasl_plain_password = "p"
        "compression.codec" = "gzip"
        "queue.buffering.max.ms" = 7
        batch_size = 5000
        "delivery.timeout.ms" = 40000
        """,
    ],
)  # fmt: skip
def test_other_clients_names_are_taken(text: str) -> None:
    found = taken(tomllib.loads(text))
    assert (found.bootstrap_servers, found.client_id, found.compression) == ("b:1", "me", "gzip")
    assert (found.linger_ms, found.batch_bytes, found.delivery_timeout_ms) == (7, 5000, 40_000)
    security = found.security
    assert (security.security_protocol, security.sasl_mechanism) == ("SASL_PLAINTEXT", "PLAIN")
    assert (security.sasl_username, security.sasl_password) == ("u", "p")


def test_tables_of_ones_own_stay_tables() -> None:
    found = taken({**OURS, "topic_config": {"retention.ms": 1000, "cleanup.policy": "compact"}})
    expected = {"retention.ms": "1000", "cleanup.policy": "compact"}
    assert found.topic_config == expected
    nested = tomllib.loads('retention.ms = 1000\ncleanup.policy = "compact"')  # without quotes
    assert taken({**OURS, "topic_config": nested}).topic_config == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acks", "always idempotent, with acks=all"),
        ("enable.idempotence", "always idempotent"),
        ("partitioner", "as with Java's producers (murmur2)"),
        ("isolation.level", "an option of consumers"),
        ("value.serializer", "choose a format"),
        ("sasl.jaas.config", "give sasl_username and sasl_password"),
        ("ssl.truststore.location", "give PEM files as ssl_cafile"),
        ("schema.registry.url", "give it as url in a table"),
        ("queue.buffering.max.kbytes", "in_flight_bytes"),
        (
            "bootstrap.server",
            "'bootstrap.server' of sink 'kafka' is not known (did you mean 'bootstrap_servers'?)",
        ),
    ],
)
def test_names_that_mean_nothing_here_are_answered(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        taken({**OURS, name: "x"})
    assert said in str(caught.value)


def test_an_option_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'compression.type' .* is the same as 'compression'"):
        taken({**OURS, "compression": "gzip", "compression.type": "lz4"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transaction_timeout_ms": 1}, "of milliseconds, 1000 or greater"),
        ({"topic": "a b"}, "is not a topic's name"),
        ({"transaction_topic": "ends/{feed}"}, "is not a topic's name"),
    ],
)
def test_what_no_broker_takes_is_found_before_one_is_asked(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        taken({**OURS, **options})

"""What the sink says of options that it can't use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sinks.kafka.sink import KafkaSink
from tailer.errors import ConfigError
from tailer.sink import make_sink

GOOD = {"bootstrap_servers": "127.0.0.1:9092", "topic": "t"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": None}, "option 'topic' of sink 'kafka' is None, and must be a topic's name"),
        (
            {"bootstrap": "x"},
            "option 'bootstrap' of sink 'kafka' is not known (did you mean 'bootstrap_",
        ),
        ({"delivery": "once"}, "must be one of exactly-once, at-least-once"),
        ({"bootstrap.servers": "x"}, "not known (did you mean 'bootstrap_servers'?)"),
        ({"batch_size": 1}, "not known (here it is 'batch_bytes')"),
        ({"compression": "br"}, "must be one of none, gzip"),
        ({"format": "xml"}, "is 'xml', and must be one of rows, debezium, cloudevents"),
        ({"format": 3}, "is 3, and must be one of rows"),
        ({"batch_bytes": 0}, "must be a whole number of bytes, greater than 0"),
        ({"topic": "a b"}, "is not a topic's name"),
        ({"notice_topic": "notes/{feed}"}, "is not a topic's name"),
        ({"transaction_timeout_ms": 1}, "of milliseconds, 1000 or greater"),
        ({"topic": "{feed}.{a b}/"}, "is not a topic's name"),
        ({"progress_topic": "{table}"}, "may hold {feed}, and"),
        ({"delivery_timeout_ms": 5}, "of milliseconds, 100 or greater"),
        ({"tombstones": True}, "tombstones need a key"),
        ({"security_protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "X"}, "must be one of PLAIN, SCRAM"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "needs the options sasl_us"),
        ({"sasl_username": "u"}, "need security_protocol SASL_SSL"),
        ({"ssl_cafile": "/etc/hostname"}, "need security_protocol SSL"),
        ({"security_protocol": "SSL", "ssl_cafile": "none.pem"}, "there is no"),
        ({"security_protocol": "SSL", "ssl_keyfile": "/etc/hostname"}, "go together"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs either sasl_"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_sink("kafka", {**GOOD, **options}, tmp_path)
    assert said in str(caught.value)


def test_a_secret_goes_nowhere_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it must be https"):
        make_sink(
            "kafka",
            {
                **GOOD,
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauthbearer_token_endpoint_url": "http://issuer.example/token",
                "sasl_oauthbearer_client_id": "me",
                "sasl_oauthbearer_client_secret": "hush",
            },
            tmp_path,
        )


def test_secrets_do_not_show(tmp_path: Path) -> None:
    secrets = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "sasl_password": "hush-1",
        "ssl_password": "hush-2",
        "sasl_oauthbearer_token": "hush-3",
        "sasl_oauthbearer_client_secret": "hush-4",
    }
    sink = make_sink("kafka", {**GOOD, **secrets}, tmp_path)
    assert isinstance(sink, KafkaSink)
    shown = repr(sink.options) + str(sink.options) + json.dumps(str(sink.__dict__))
    assert "alice" in shown
    assert "hush" not in shown

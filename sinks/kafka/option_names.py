"""The names that other Kafka clients have for our options: taken for ours, or answered.

Whoever comes from librdkafka, the Java client or kafka-python writes their names, with dots or with
underscores. Those that mean one of our options are taken for it; of the others the answer says what
takes their place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tailer.errors import ConfigError

__all__ = ["our_names", "with_dots"]

#: Other clients' names, with underscores, that mean one of ours.
_SAME = {
    "metadata_broker_list": "bootstrap_servers",
    "compression_type": "compression",
    "compression_codec": "compression",
    "queue_buffering_max_ms": "linger_ms",
    "batch_size": "batch_bytes",
    "buffer_memory": "in_flight_bytes",
    "message_timeout_ms": "delivery_timeout_ms",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_plain_username": "sasl_username",
    "sasl_plain_password": "sasl_password",
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "ssl_key_password": "ssl_password",
}

_READERS = "it is an option of consumers, and the sink only writes"
_STORES = "Java's key stores are not read; give PEM files as ssl_cafile, ssl_certfile, ssl_keyfile"
_ALWAYS = "the producer is always idempotent, with acks=all; leave it out"

#: Names that mean nothing here, and what to do instead.
_ANSWERS = {
    "acks": _ALWAYS,
    "request_required_acks": _ALWAYS,
    "enable_idempotence": _ALWAYS,
    "retries": "the sink retries until delivery_timeout_ms is over; leave it out",
    "message_send_max_retries": "the sink retries until delivery_timeout_ms is over; leave it out",
    "max_in_flight_requests_per_connection": "the sink bounds bytes instead: in_flight_bytes",
    "max_in_flight": "the sink bounds bytes instead: in_flight_bytes",
    "queue_buffering_max_kbytes": "give the bytes as in_flight_bytes",
    "queue_buffering_max_messages": "the sink bounds bytes instead: in_flight_bytes",
    "max_request_size": "requests follow batch_bytes, and the topic's own max.message.bytes",
    "message_max_bytes": "requests follow batch_bytes, and the topic's own max.message.bytes",
    "partitioner": "keys go to partitions as with Java's producers (murmur2); leave it out",
    "partitioner_class": "keys go to partitions as with Java's producers (murmur2); leave it out",
    "key_serializer": "choose a format",
    "value_serializer": "choose a format",
    "schema_registry_url": "give it as url in a table [....sink.registry], with format = 'avro'",
    "group_id": _READERS,
    "auto_offset_reset": _READERS,
    "enable_auto_commit": _READERS,
    "isolation_level": _READERS,
    "sasl_jaas_config": "give sasl_username and sasl_password",
    "sasl_oauthbearer_config": "give the options sasl_oauthbearer_...",
    "ssl_truststore_location": _STORES,
    "ssl_truststore_password": _STORES,
    "ssl_keystore_location": _STORES,
    "ssl_keystore_password": _STORES,
    "ssl_endpoint_identification_algorithm": "give ssl_check_hostname = true or false",
    "enable_ssl_certificate_verification": "certificates are always verified; give ssl_cafile",
}

#: Our options that are tables.
_TABLES = ("topic_config", "registry")


def our_names(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The options under our names (``known``); what has no meaning here is left as it is.

    Raises :class:`ConfigError` for a name that only other clients have a use for, with what takes
    its place, and for an option that is given under two names.
    """
    found: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, value in with_dots(options, _TABLES):
        plain = name.replace(".", "_").replace("-", "_").lower()
        if plain in _ANSWERS and name not in known:
            raise ConfigError(f"sink 'kafka' has no option {name!r}: {_ANSWERS[plain]}")
        plain = _SAME.get(plain, plain)
        ours = plain if plain in known else name
        if ours in found:
            raise ConfigError(
                f"options {given[ours]!r} and {name!r} of sink 'kafka' are the same; leave one out"
            )
        found[ours], given[ours] = value, name
    return found


def with_dots(
    options: Mapping[str, Any], tables: Collection[str] = (), before: str = ""
) -> Iterator[tuple[str, Any]]:
    """Names and values, as they were written: TOML takes a name with dots for tables within each
    other. What ``tables`` names is a table indeed."""
    for name, value in options.items():
        full = before + name
        if isinstance(value, Mapping) and full not in tables:
            yield from with_dots(value, tables, f"{full}.")
        else:
            yield full, value

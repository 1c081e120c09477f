"""The names that other Kafka clients have for our options: accepted, or answered with a remedy.

Users of librdkafka, the Java client or kafka-python write their names, with dots or with
underscores. A name that means one of our options is accepted for it (``elsewhere`` of its setting);
for the others the error says what to do instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["ANSWERS", "spelling", "with_dots"]

_READERS = "it is an option of consumers, and the sink only writes"
_STORES = "Java's key stores are not read; give PEM files as ssl_cafile, ssl_certfile, ssl_keyfile"
_ALWAYS = "the producer is always idempotent, with acks=all; leave it out"

#: Names that mean nothing here, and what to do instead.
ANSWERS = {
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


def spelling(name: str) -> str:
    """Return a name in our spelling: other clients use dots, hyphens and capitals."""
    return name.replace(".", "_").replace("-", "_").lower()


def with_dots(
    options: Mapping[str, Any], tables: Collection[str] = (), before: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield names and values as they were written: TOML reads a name with dots as nested tables.
    The names in ``tables`` really are tables."""
    for name, value in options.items():
        full = before + name
        if isinstance(value, Mapping) and full not in tables:
            yield from with_dots(value, tables, f"{full}.")
        else:
            yield full, value

"""What a schema's subject in a registry is called, as Confluent's serializers name it."""

from __future__ import annotations

from tailer.errors import ConfigError

#: What names a subject: the topic with ``-key`` or ``-value``, the record, or the topic and it.
STRATEGIES = ("topic", "record", "topic_record")


def name_subject(strategy: str, topic: str, part: str, record: str) -> str:
    """Return the subject of the schema of a ``part``, key or value, whose full name is ``record``.
    Raises :class:`ConfigError` for a sink without topics."""
    if not topic:
        raise ConfigError(
            "a registry's subjects are named after the topic, and this sink has no topic; use "
            "another format"
        )
    names = {
        "topic": f"{topic}-{part}",
        "record": record,
        "topic_record": f"{topic}-{record}",
    }
    return names[strategy]

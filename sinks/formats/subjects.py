"""Formats whose schemas are in a registry: their subjects, as Confluent's serializers name them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sinks.formats.parts import BatchEncoder
from tailer.errors import ConfigError

if TYPE_CHECKING:
    from sinks.formats.registry import Registry

#: What names a subject: the topic with ``-key`` or ``-value``, the record, or the topic and it.
STRATEGIES = ("topic", "record", "topic_record")


class RegistryEncoder(BatchEncoder):
    """Records whose schemas are in a registry."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.registry: Registry = options["registry"]
        self.envelope: str = options["envelope"]
        self._topic: str = options["topic"]
        self._strategy: str = options["subject_name_strategy"]
        #: What is known of the schemas that the registry has, by subject and what is looked for.
        self._known: dict[tuple[Any, ...], Any] = {}

    def _name_subject(self, part: str, record: str) -> str:
        """Return the subject of the schema of a ``part``, key or value, whose full name is
        ``record``. Raises :class:`ConfigError` for a sink without topics."""
        if not self._topic:
            raise ConfigError(
                "a registry's subjects are named after the topic, and this sink has no topic; use "
                "another format"
            )
        names = {
            "topic": f"{self._topic}-{part}",
            "record": record,
            "topic_record": f"{self._topic}-{record}",
        }
        return names[self._strategy]


def format_frame(schema_id: int) -> bytes:
    """Return what a value in the wire format begins with: a zero byte, and the schema's id."""
    return struct.pack(">bI", 0, schema_id)

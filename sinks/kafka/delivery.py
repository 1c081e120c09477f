"""The form of a feed's records in Kafka, and its change: see :mod:`sinks.shared.delivery`.

It is saved with the progress. A change stops the feed unless ``accept_changes`` is set; the new
form is then saved, so that the option can be removed again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sinks.kafka.options import KafkaOptions
from sinks.shared.delivery import changes_told, form_of
from tailer.changes import Offset
from tailer.errors import ConfigError

__all__ = ["Delivery", "accepted", "delivery_of"]

#: The options that determine the form of records, by name; an option that is not set has its
#: default.
Delivery = dict[str, Any]


def delivery_of(options: KafkaOptions, feed: str) -> Delivery:
    """Return the form of a feed's records under these options."""
    # {table} may be the name in the metadata; a change of that is not a change of options.
    table = options.encoder.get("table") or "{table}"
    topic = options.topic.replace("{feed}", feed).replace("{table}", table)
    return form_of(options.encoder, topic=topic, format=options.format)


def accepted(
    before: Mapping[str, Any] | None, options: KafkaOptions, feed: str, at: Offset | None
) -> bool:
    """Return whether the options give another delivery than ``before``, and it is accepted.

    Raises :class:`ConfigError`, naming what has changed and what it means, if it is not accepted.
    """
    told = changes_told(before, {"type": "kafka", **delivery_of(options, feed)}, feed, at)
    if told is None:
        return False
    if not options.accept_changes:
        raise ConfigError(
            f"{told}; change them back, give the feed another name to write the table again, or "
            "set accept_changes = true for one start"
        )
    logging.getLogger("tailer.kafka").warning(
        "feed %s: accepted: %s; take accept_changes out after this start", feed, told
    )
    return True

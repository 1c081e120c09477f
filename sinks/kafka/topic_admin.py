"""An administrator's requests, by kafka-python's client, with the broker's own words of refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import NoError, TopicAlreadyExistsError, for_code

_TRANSACTION_MS_MAX = "transaction.max.timeout.ms"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 is the broker's default."""

    name: str
    partitions: int = -1
    config: dict[str, str] = field(default_factory=dict)


def create_topic(admin: Any, topic: NewTopic, *, only_validate: bool = False) -> None:
    """Create a topic, or only ask whether it could be created; an existing one is accepted.

    Raises the client's error with the broker's message, which the client itself leaves out.
    """
    asked = {
        "num_partitions": topic.partitions,
        "replication_factor": -1,
        "configs": topic.config,
    }
    answers = admin.create_topics(
        {topic.name: asked}, validate_only=only_validate, raise_errors=False
    )
    answer = answers["topics"][0]
    error = for_code(answer["error_code"])
    if error not in (NoError, TopicAlreadyExistsError):
        raise error(answer.get("error_message") or "the broker does not say why")


def find_transaction_ms_max(admin: Any) -> int | None:
    """Return the brokers' ``transaction.max.timeout.ms``; None if the broker does not report it."""
    node = admin.describe_cluster()["brokers"][0]["broker_id"]
    # By its name alone: a broker has hundreds of settings, which take 20 ms to read.
    asked = ConfigResource(ConfigResourceType.BROKER, str(node), {_TRANSACTION_MS_MAX: None})
    answer = admin.describe_configs([asked], config_filter="all")
    found = answer.get("broker", {}).get(str(node), {}).get(_TRANSACTION_MS_MAX)
    return None if found is None else int(found["value"])

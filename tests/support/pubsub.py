"""Google Cloud Pub/Sub for tests: Google's own fake, which Go builds, held to the service's limits.

Each test has a topic of its own. What was published is in a file, in the order of the server.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.pubsub_v1 import types

from tailer.testing.conformance.sink import Event
from tests.support.pubsub_server import PROGRAM, PUBSUB
from tests.support.servers import Server

PROJECT = "lake"
_WAIT_S = 100.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was published."""

    id: str
    event_id: str
    data: bytes
    ordering_key: str


class Pubsub(Server):
    """A server of Pub/Sub."""

    name = "pubsub"

    def start(self) -> None:
        self.launch(PUBSUB.path() / PROGRAM, self.address, self.folder)

    @property
    def address(self) -> str:
        """What PUBSUB_EMULATOR_HOST is set to."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where it is, as the sink's options say it."""
        return f"http://{self.address}"

    def topic(self, name: str) -> str:
        """A new topic."""
        self._ask("Publisher/CreateTopic", types.Topic(name=topic_path(name)), types.Topic)
        return topic_path(name)

    def delete_topic(self, name: str) -> None:
        """Remove a topic; what was published stays in the file."""
        request = types.DeleteTopicRequest(topic=topic_path(name))
        self._ask("Publisher/DeleteTopic", request, types.Topic)

    def options(self, name: str) -> dict[str, Any]:
        """The options of a sink that lead to a new topic."""
        return {"topic": self.topic(name), "endpoint_url": self.url}

    def subscription(self, name: str) -> str:
        """A new subscription to a topic, which keeps the order of each ordering key."""
        path = f"projects/{PROJECT}/subscriptions/{name}"
        wanted = types.Subscription(
            name=path, topic=topic_path(name), enable_message_ordering=True, ack_deadline_seconds=60
        )
        self._ask("Subscriber/CreateSubscription", wanted, types.Subscription)
        return path

    def pull(self, subscription: str) -> list[types.PubsubMessage]:
        """Take what a subscription gives now."""
        request = types.PullRequest(
            subscription=subscription, max_messages=1000, return_immediately=True
        )
        found = self._ask("Subscriber/Pull", request, types.PullResponse).received_messages
        if found:
            taken = types.AcknowledgeRequest(
                subscription=subscription, ack_ids=[each.ack_id for each in found]
            )
            self._ask("Subscriber/Acknowledge", taken, types.Topic)
        return [each.message for each in found]

    def _ask(self, method: str, request: Any, gives: Any) -> Any:
        with grpc.insecure_channel(self.address) as channel:
            call = channel.unary_unary(
                f"/google.pubsub.v1.{method}",
                request_serializer=type(request).serialize,
                response_deserializer=gives.deserialize,
            )
            return call(request, timeout=_WAIT_S)

    def messages(self, name: str) -> list[Message]:
        """What was published to a topic, in order."""
        found = []
        for line in (self.folder / "messages.jsonl").read_bytes().splitlines(keepends=True):
            entry = json.loads(line) if line.endswith(b"\n") else {}
            if entry.get("id") and entry["topic"] == topic_path(name):
                event_id = entry["attributes"]["event_id"]
                key = entry.get("ordering_key", "")
                found.append(Message(entry["id"], event_id, b64decode(entry["data"]), key))
        return found

    def events(self, name: str) -> Sequence[Event]:
        """The same as events in the format `rows`."""
        rows = [(each.event_id, json.loads(each.data)) for each in self.messages(name)]
        return [
            Event(event_id, row["_change_type"], row["_commit_version"], row)
            for event_id, row in rows
        ]

    def size(self) -> int:
        """How many bytes the file has of all topics."""
        return (self.folder / "messages.jsonl").stat().st_size

    @contextmanager
    def failing(self, name: str, code: grpc.StatusCode | None, **more: Any) -> Iterator[None]:
        """Have a topic's requests fail within the block; without a code, they are carried out and
        have no receipts. ``method`` and ``text`` are for which ones."""
        number = 0 if code is None else code.value[0]
        self.set_faults({name: [{"code": number, "message": "not now", **more}]})
        try:
            yield
        finally:
            self.set_faults({})

    def set_faults(self, by_topic: Mapping[str, Any]) -> None:
        """Say what goes wrong, by topic: see the server's ``fault``."""
        new = self.folder / "faults.new"
        new.write_text(json.dumps(by_topic))
        new.rename(self.folder / "faults.json")


def topic_path(name: str) -> str:
    """A topic's name as the service has it."""
    return f"projects/{PROJECT}/topics/{name}"

"""The SQS sink: each event as a message of a queue of Amazon SQS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sinks.aws.answers import MessageRefused, find_refused_entries
from sinks.aws.sink import CONNECTION, AwsSink
from sinks.messages.messages import Messages, RequestLimits, parse_limit
from tailer.settings import REQUIRED, Setting

SETTINGS: dict[str, Setting] = {
    "queue": Setting(
        "text", REQUIRED, "URL or name of the queue; `{feed}` is replaced by the feed's name. A "
        "name that ends in `.fifo` is a FIFO queue.",
    ),
    **CONNECTION,
}  # fmt: skip


class SqsSink(AwsSink):
    """Events as messages of an SQS queue, at least once."""

    kind = "sqs"
    places = ("queue",)
    settings = SETTINGS
    #: Of a queue that does not tell its own.
    limits = RequestLimits(10, 256 * 1024, overhead=160)
    _url = ""

    @property
    def location(self) -> str:
        return f"SQS queue {self.fill_option('queue').rpartition('/')[2]}"

    async def check_target(self) -> None:
        queue = self.fill_option("queue")
        if "://" not in queue:
            queue = (await self.client.get_queue_url(QueueName=queue))["QueueUrl"]
        self._url = queue
        name = "MaximumMessageSize"
        asked = self.client.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])
        limit = (await self.ask_service(asked)).get("Attributes", {}).get(name)
        # A request takes no more than a message.
        most = parse_limit(limit, type(self).limits.bytes, 1024)
        remedy = "" if limit else "allow sqs:GetQueueAttributes, which tells the queue's limit, "
        self.limits = replace(self.limits, bytes=most, remedy=remedy)

    async def put_messages(self, messages: Messages) -> Sequence[tuple[int, MessageRefused]]:
        entries = build_entries(self, messages, "MessageBody", fifo=self._url.endswith(".fifo"))
        answer = await self.client.send_message_batch(QueueUrl=self._url, Entries=entries)
        return find_refused_entries(answer, len(messages))


def build_entries(
    sink: AwsSink, messages: Messages, body: str, *, fifo: bool
) -> list[dict[str, Any]]:
    """Return the entries of a request to SQS or SNS. A FIFO queue drops a message whose id it has
    seen within five minutes, and keeps those of a group in order."""
    ids, values = messages.ids.to_pylist(), messages.values.to_pylist()
    groups = sink.name_groups(messages) if fifo else None
    entries = []
    for number, (event_id, value) in enumerate(zip(ids, values, strict=True)):
        entry: dict[str, Any] = {
            "Id": str(number),
            body: _escape_unstorable(value).decode(),
            "MessageAttributes": {"event_id": {"DataType": "String", "StringValue": event_id}},
        }
        if groups is not None:
            entry |= {"MessageGroupId": groups[number], "MessageDeduplicationId": event_id}
        entries.append(entry)
    return entries


def _escape_unstorable(value: bytes) -> bytes:
    """Escape, in JSON, the characters that JSON may have as they are and a queue may not: it would
    store U+FFFD in their place, and say nothing."""
    if not value.startswith(b"{"):
        return value
    return value.replace(b"\xef\xbf\xbe", rb"\ufffe").replace(b"\xef\xbf\xbf", rb"\uffff")

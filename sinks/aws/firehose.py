"""The Firehose sink: each event as a line of what a delivery stream delivers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from sinks.aws.answers import MessageRefused, find_refused_records
from sinks.aws.sink import CONNECTION, AwsSink
from sinks.messages.messages import Messages, RequestLimits
from tailer.settings import Setting

SETTINGS: dict[str, Setting] = {
    "delivery_stream": Setting(
        "text", "{feed}", "The delivery stream; `{feed}` is replaced by the feed's name.",
    ),
    **CONNECTION,
}  # fmt: skip


class FirehoseSink(AwsSink):
    """Events as records of a Firehose delivery stream, at least once."""

    kind = "firehose"
    places = ("delivery_stream",)
    settings = SETTINGS
    has_keys = False
    limits = RequestLimits(500, 4 * 1024**2, message_bytes=1000 * 1024 - 1, overhead=1)

    @property
    def location(self) -> str:
        return f"Firehose delivery stream {self.fill_option('delivery_stream')}"

    async def check_target(self) -> dt.datetime | None:
        name = self.fill_option("delivery_stream")
        found = await self.client.describe_delivery_stream(DeliveryStreamName=name)
        made: dt.datetime | None = found["DeliveryStreamDescription"].get("CreateTimestamp")
        return made

    async def put_messages(self, messages: Messages) -> Sequence[tuple[int, MessageRefused]]:
        records = [{"Data": value + b"\n"} for value in messages.values.to_pylist()]
        name = self.fill_option("delivery_stream")
        answer = await self.client.put_record_batch(DeliveryStreamName=name, Records=records)
        return find_refused_records(answer.get("RequestResponses"), len(messages), "RecordId")

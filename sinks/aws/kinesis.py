"""The Kinesis sink: each event as a record of a data stream."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

from sinks.aws.answers import MessageRefused, find_refused_records
from sinks.aws.sink import CONNECTION, AwsSink
from sinks.messages.messages import Messages, RequestLimits, parse_limit
from tailer.settings import Setting

SETTINGS: dict[str, Setting] = {
    "stream": Setting("text", "{feed}", "The stream; `{feed}` is replaced by the feed's name."),
    **CONNECTION,
}
#: The partition key counts too.
_MIB, _KEY_BYTES = 1024**2, 256


class KinesisSink(AwsSink):
    """Events as records of a Kinesis data stream, at least once."""

    kind = "kinesis"
    places = ("stream",)
    settings = SETTINGS
    has_keys = False
    limits = RequestLimits(500, 5 * _MIB, message_bytes=_MIB - _KEY_BYTES, overhead=_KEY_BYTES)

    @property
    def location(self) -> str:
        return f"Kinesis stream {self.fill_option('stream')}"

    async def check_target(self) -> dt.datetime | None:
        found = await self.client.describe_stream_summary(StreamName=self.fill_option("stream"))
        stream = found["StreamDescriptionSummary"]
        kib = parse_limit(stream.get("MaxRecordSizeInKiB"), 1024, 1024)
        self.limits = replace(self.limits, message_bytes=parse_limit(kib * 1024, _MIB) - _KEY_BYTES)
        made: dt.datetime = stream["StreamCreationTimestamp"]
        return made

    async def put_messages(self, messages: Messages) -> Sequence[tuple[int, MessageRefused]]:
        found = zip(messages.values.to_pylist(), self.name_groups(messages), strict=True)
        records = [{"Data": value, "PartitionKey": group} for value, group in found]
        answer = await self.client.put_records(
            StreamName=self.fill_option("stream"), Records=records
        )
        return find_refused_records(answer.get("Records"), len(messages), "SequenceNumber")

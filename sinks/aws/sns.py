"""The SNS sink: each event as a message to a topic of Amazon SNS."""

from __future__ import annotations

from collections.abc import Sequence

from sinks.aws.answers import MessageRefused, find_refused_entries
from sinks.aws.sink import CONNECTION, AwsSink
from sinks.aws.sqs import build_entries
from sinks.messages.messages import Messages, RequestLimits
from tailer.settings import REQUIRED, Setting

SETTINGS: dict[str, Setting] = {
    "topic_arn": Setting(
        "text", REQUIRED, "ARN of the topic; `{feed}` is replaced by the feed's name. A name that "
        "ends in `.fifo` is a FIFO topic.",
    ),
    **CONNECTION,
}  # fmt: skip


class SnsSink(AwsSink):
    """Events as messages to an SNS topic, at least once."""

    kind = "sns"
    places = ("topic_arn",)
    settings = SETTINGS
    limits = RequestLimits(10, 256 * 1024, overhead=160)

    @property
    def location(self) -> str:
        return f"SNS topic {self.fill_option('topic_arn').rpartition(':')[2]}"

    async def check_target(self) -> None:
        await self.client.get_topic_attributes(TopicArn=self.fill_option("topic_arn"))

    async def put_messages(self, messages: Messages) -> Sequence[tuple[int, MessageRefused]]:
        arn = self.fill_option("topic_arn")
        entries = build_entries(self, messages, "Message", fifo=arn.endswith(".fifo"))
        answer = await self.client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries)
        return find_refused_entries(answer, len(messages))

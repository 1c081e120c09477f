"""Services of AWS for tests: moto's server, in an environment of its own.

It needs another botocore than this project does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session

from tailer.testing.conformance.sink import Event
from tests.support.components import Component, make_environment, python_tag
from tests.support.servers import Server

VERSION = "5.2.5"
REGION = "eu-central-1"
#: The variables of an account; moto takes any.
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
}  # fmt: skip
AWS_SINKS = ("firehose", "kinesis", "sns", "sqs")


def _install(folder: Path) -> None:
    make_environment(folder, f"moto[server]=={VERSION}")


MOTO = Component(
    "moto",
    f"moto {VERSION}, the services of AWS,",
    home=lambda: f"moto-{VERSION}-{python_tag()}",
    make=_install,
)


class Aws(Server):
    """moto's server."""

    name = "moto"

    def __init__(self) -> None:
        super().__init__()
        #: By stream, where it is read on, and how many records came before that.
        self._counted: dict[str, tuple[str, int]] = {}

    def start(self) -> None:
        # By itself it sends two Server headers, which a client in development mode refuses, and
        # looks at all messages of a queue three times for each one that comes, and slowly for each
        # that is read. None is ever delayed.
        program = (
            "from werkzeug.serving import WSGIRequestHandler as Handler; "
            "Handler.send_response = Handler.send_response_only; "
            "import time; from moto.sqs.models import Message, Queue; "
            "Message.delayed = False; "
            "Message.visible = property(lambda one: time.time() * 1000 > one.visible_at); "
            "counted = property(lambda queue: len(queue._messages)); "
            "Queue.approximate_number_of_messages = counted; "
            "Queue.approximate_number_of_messages_delayed = 0; "
            "Queue.approximate_number_of_messages_not_visible = 0; "
            f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{self.port}'])"
        )
        self.launch(MOTO.path() / "bin" / "python", "-c", program)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @cache  # noqa: B019  # a server of a session
    def client(self, service: str) -> Any:
        """A client of a service."""
        return botocore.session.Session().create_client(
            service, region_name=REGION, endpoint_url=self.url,
            aws_access_key_id="testing", aws_secret_access_key="testing",
        )  # fmt: skip

    def options(self, kind: str, name: str) -> dict[str, Any]:
        """The options of a sink that lead to a new target."""
        made = {
            "sqs": self._queue, "sns": self._topic, "kinesis": self._stream,
            "firehose": self._delivery,
        }[kind](name)  # fmt: skip
        return {**made, "endpoint_url": self.url, "region": REGION}

    def _queue(self, name: str) -> dict[str, Any]:
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        self.client("sqs").create_queue(QueueName=name, Attributes=fifo)
        return {"queue": name}

    def _topic(self, name: str) -> dict[str, Any]:
        self._queue(f"of-{name}")
        fifo = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
        arn = self.client("sns").create_topic(Name=name, Attributes=fifo)["TopicArn"]
        queue = f"arn:aws:sqs:{REGION}:123456789012:of-{name}"
        self.client("sns").subscribe(
            TopicArn=arn, Protocol="sqs", Endpoint=queue,
            Attributes={"RawMessageDelivery": "true"},
        )  # fmt: skip
        return {"topic_arn": arn}

    def _stream(self, name: str) -> dict[str, Any]:
        self.client("kinesis").create_stream(StreamName=name, ShardCount=1)
        return {"stream": name}

    def _delivery(self, name: str) -> dict[str, Any]:
        self.client("s3").create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        to = {"RoleARN": "arn:aws:iam::123456789012:role/x", "BucketARN": f"arn:aws:s3:::{name}"}
        self.client("firehose").create_delivery_stream(
            DeliveryStreamName=name, ExtendedS3DestinationConfiguration=to
        )
        return {"delivery_stream": name}

    def events(self, kind: str, name: str) -> Sequence[Event]:
        """What a target has, in order."""
        events = [
            _event(event_id, json.loads(body)) for event_id, body in self.messages(kind, name)
        ]
        if kind == "firehose":  # which keeps no order
            events.sort(key=lambda event: (event.commit_version, event.payload.get("id", 0)))
        return events

    def messages(self, kind: str, name: str) -> list[tuple[str, bytes]]:
        """What a target has, in order; each with its event id, where that is not in its body."""
        if kind in ("sqs", "sns"):
            return self._messages(name if kind == "sqs" else f"of-{name}")
        return [("", line) for line in (self._records if kind == "kinesis" else self._lines)(name)]

    def count(self, kind: str, name: str) -> int:
        """How much a target has: messages, records or files."""
        if kind == "firehose":
            return int(self.client("s3").list_objects_v2(Bucket=name)["KeyCount"])
        if kind == "kinesis":
            return self._read_on(name)
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=name if kind == "sqs" else f"of-{name}")["QueueUrl"]
        number = "ApproximateNumberOfMessages"
        answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[number])
        return int(answer["Attributes"][number])

    def _read_on(self, name: str) -> int:
        """How many records a stream of one shard has, of which only the newest are read."""
        kinesis = self.client("kinesis")
        if name not in self._counted:
            [shard] = kinesis.list_shards(StreamName=name)["Shards"]
            at = kinesis.get_shard_iterator(
                StreamName=name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            self._counted[name] = (at, 0)
        at, before = self._counted[name]
        answer = kinesis.get_records(ShardIterator=at, Limit=10_000)
        self._counted[name] = (answer["NextShardIterator"], before + len(answer["Records"]))
        return self._counted[name][1]

    def _messages(self, name: str) -> list[tuple[str, bytes]]:
        """The messages of a queue, which stay there."""
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        found: list[dict[str, Any]] = []
        while some := sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            VisibilityTimeout=3600,
            MessageAttributeNames=["All"],
        ).get("Messages"):
            found += some
        for at in range(0, len(found), 10):
            entries = [
                {"Id": str(i), "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0}
                for i, one in enumerate(found[at : at + 10])
            ]
            sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
        return [
            (one["MessageAttributes"]["event_id"]["StringValue"], one["Body"].encode())
            for one in found
        ]

    def _records(self, name: str) -> list[bytes]:
        kinesis = self.client("kinesis")
        shards = kinesis.list_shards(StreamName=name)["Shards"]
        found: list[bytes] = []
        for shard in shards:
            at = kinesis.get_shard_iterator(
                StreamName=name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while True:
                answer = kinesis.get_records(ShardIterator=at, Limit=10_000)
                found += [record["Data"] for record in answer["Records"]]
                if not answer["Records"]:
                    break
                at = answer["NextShardIterator"]
        return found

    def _lines(self, name: str) -> list[bytes]:
        s3 = self.client("s3")
        found = s3.list_objects_v2(Bucket=name).get("Contents", [])
        found.sort(key=lambda one: (one["LastModified"], one["Key"]))
        bodies = [s3.get_object(Bucket=name, Key=one["Key"])["Body"].read() for one in found]
        return [line for body in bodies for line in body.splitlines()]


def _event(event_id: str, row: dict[str, Any]) -> Event:
    payload = row
    if not event_id:
        event_id = row["_event_id"]
        payload = {k: value for k, value in row.items() if k not in ("_event_id", "_origin")}
    return Event(event_id, row["_change_type"], row["_commit_version"], payload)

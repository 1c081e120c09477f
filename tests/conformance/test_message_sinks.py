"""The sinks that send messages against the public suite."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import SinkConformance
from tailer.testing.conformance.sink import MakeSink, ReadEvents
from tests.support.aws import Aws
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.message_targets import nats_events, rabbitmq_events, redis_events
from tests.support.webhook import Webhook, webhook


@pytest.fixture
def name() -> str:
    """The name of a new stream or queue."""
    return f"t{uuid.uuid4().hex}"


class TestHttpSink(SinkConformance):
    @pytest.fixture
    async def hook(self) -> AsyncIterator[Webhook]:
        async with webhook() as running:
            yield running

    @pytest.fixture
    def make_sink(self, hook: Webhook) -> MakeSink:
        return lambda: made_sink("http", {"url": hook.url}, Path())

    @pytest.fixture
    def read_events(self, hook: Webhook) -> ReadEvents:
        return hook.events


class TestRedisSink(SinkConformance):
    @pytest.fixture
    def make_sink(self, redis_server: Redis, name: str) -> MakeSink:
        options = {"url": redis_server.url(), "stream": name}
        return lambda: made_sink("redis", options, Path())

    @pytest.fixture
    def read_events(self, redis_server: Redis, name: str) -> ReadEvents:
        return lambda: redis_events(redis_server, name)


class TestNatsSink(SinkConformance):
    @pytest.fixture
    def make_sink(self, nats_server: Nats, name: str) -> MakeSink:
        options = {"servers": [nats_server.url()], "stream": name, "subject": name}
        return lambda: made_sink("nats", options, Path())

    @pytest.fixture
    def read_events(self, nats_server: Nats, name: str) -> ReadEvents:
        return lambda: nats_events(nats_server, name)


class TestRabbitmqSink(SinkConformance):
    @pytest.fixture
    def make_sink(self, rabbitmq_server: RabbitMq, name: str) -> MakeSink:
        options = {"url": rabbitmq_server.url(), "queue": name, "queue_type": "classic"}
        return lambda: made_sink("rabbitmq", options, Path())

    @pytest.fixture
    def read_events(self, rabbitmq_server: RabbitMq, name: str) -> ReadEvents:
        return lambda: rabbitmq_events(rabbitmq_server, name)


class AwsConformance(SinkConformance):
    kind = ""

    @pytest.fixture
    def make_sink(self, aws: Aws, name: str) -> MakeSink:
        options = aws.options(self.kind, name)
        return lambda: made_sink(self.kind, options, Path())

    @pytest.fixture
    def read_events(self, aws: Aws, name: str) -> ReadEvents:
        return lambda: aws.events(self.kind, name)


class TestSqsSink(AwsConformance):
    kind = "sqs"


class TestSnsSink(AwsConformance):
    kind = "sns"


class TestKinesisSink(AwsConformance):
    kind = "kinesis"


class TestFirehoseSink(AwsConformance):
    kind = "firehose"

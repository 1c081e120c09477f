"""The sinks that send messages against the public suite."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import SinkConformance, TargetFaults
from tailer.testing.conformance.sink import MakeSink, ReadEvents
from tests.conformance.faults import (
    aws_faults,
    http_faults,
    nats_faults,
    pubsub_faults,
    rabbitmq_faults,
    redis_faults,
)
from tests.support.aws import Aws
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.message_targets import nats_events, rabbitmq_events, redis_events
from tests.support.pubsub import Pubsub
from tests.support.webhook import Webhook, webhook


@pytest.fixture
def name() -> str:
    """The name of a new stream or queue."""
    return f"t{uuid.uuid4().hex}"


@pytest.mark.usefixtures("one_attempt")
class TestHttpSink(SinkConformance):
    @pytest.fixture
    async def hook(self) -> AsyncIterator[Webhook]:
        async with webhook() as running:
            yield running

    @pytest.fixture
    def target_faults(self, hook: Webhook) -> TargetFaults:
        return http_faults(hook)

    @pytest.fixture
    def make_sink(self, hook: Webhook) -> MakeSink:
        return lambda: made_sink("http", {"url": hook.url}, Path())

    @pytest.fixture
    def read_events(self, hook: Webhook) -> ReadEvents:
        return hook.events


class TestRedisSink(SinkConformance):
    @pytest.fixture
    def options(self, redis_server: Redis, name: str) -> dict[str, Any]:
        return {"url": redis_server.url(), "stream": name}

    @pytest.fixture
    def target_faults(self, redis_server: Redis, options: dict[str, Any]) -> TargetFaults:
        return redis_faults(redis_server, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("redis", options, Path())

    @pytest.fixture
    def read_events(self, redis_server: Redis, name: str) -> ReadEvents:
        return lambda: redis_events(redis_server, name)


class TestNatsSink(SinkConformance):
    @pytest.fixture
    def options(self, nats_server: Nats, name: str) -> dict[str, Any]:
        return {"servers": [nats_server.url()], "stream": name, "subject": name}

    @pytest.fixture
    def target_faults(self, nats_server: Nats, options: dict[str, Any]) -> TargetFaults:
        return nats_faults(nats_server, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("nats", options, Path())

    @pytest.fixture
    def read_events(self, nats_server: Nats, name: str) -> ReadEvents:
        return lambda: nats_events(nats_server, name)


class TestRabbitmqSink(SinkConformance):
    @pytest.fixture
    def options(self, rabbitmq_server: RabbitMq, name: str) -> dict[str, Any]:
        return {"url": rabbitmq_server.url(), "queue": name, "queue_type": "classic"}

    @pytest.fixture
    def target_faults(self, rabbitmq_server: RabbitMq, options: dict[str, Any]) -> TargetFaults:
        return rabbitmq_faults(rabbitmq_server, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("rabbitmq", options, Path())

    @pytest.fixture
    def read_events(self, rabbitmq_server: RabbitMq, name: str) -> ReadEvents:
        return lambda: rabbitmq_events(rabbitmq_server, name)


@pytest.mark.usefixtures("one_attempt")
class TestPubsubSink(SinkConformance):
    @pytest.fixture
    def options(self, pubsub: Pubsub, name: str) -> dict[str, Any]:
        return pubsub.options(name)

    @pytest.fixture
    def target_faults(self, pubsub: Pubsub, name: str, options: dict[str, Any]) -> TargetFaults:
        return pubsub_faults(pubsub, name, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("pubsub", options, Path())

    @pytest.fixture
    def read_events(self, pubsub: Pubsub, name: str) -> ReadEvents:
        return lambda: pubsub.events(name)


@pytest.mark.usefixtures("one_attempt")
class AwsConformance(SinkConformance):
    kind = ""

    @pytest.fixture
    def options(self, aws: Aws, name: str) -> dict[str, Any]:
        return aws.options(self.kind, name)

    @pytest.fixture
    def target_faults(self, aws: Aws, options: dict[str, Any]) -> TargetFaults:
        return aws_faults(self.kind, options, aws)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink(self.kind, options, Path())

    @pytest.fixture
    def read_events(self, aws: Aws, name: str) -> ReadEvents:
        return lambda: aws.events(self.kind, name)


class TestSqsSink(AwsConformance):
    kind = "sqs"


@pytest.mark.slow
class TestSnsSink(AwsConformance):
    kind = "sns"


class TestKinesisSink(AwsConformance):
    kind = "kinesis"


@pytest.mark.slow
class TestFirehoseSink(AwsConformance):
    kind = "firehose"

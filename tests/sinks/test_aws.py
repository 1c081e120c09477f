"""The sinks of AWS beyond the public suite: order, keys, partial failures, and what they refuse."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sinks.aws.answers import MessageRefused
from sinks.aws.sink import AwsSink
from sinks.aws.sqs import SqsSink, build_entries
from sinks.messages.messages import parse_limit
from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.sink import Sink, make_sink, write_and_save
from tailer.testing.batches import change_batch
from tests.support.aws import AWS_SINKS, REGION, Aws
from tests.support.components import free_port
from tests.support.sinks import NAMED, named, write
from tests.support.web_front import WebFront, running_front

pytestmark = pytest.mark.anyio


MISSING: dict[str, dict[str, Any]] = {
    "sqs": {"queue": "nothing"},
    "sns": {"topic_arn": f"arn:aws:sns:{REGION}:123456789012:nothing"},
    "kinesis": {"stream": "nothing"},
    "firehose": {"delivery_stream": "nothing"},
}


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.nodeid))}"


def ids(aws: Aws, kind: str, name: str) -> list[int]:
    return [event.payload["id"] for event in aws.events(kind, name)]


@pytest.mark.parametrize("kind", AWS_SINKS)
async def test_many_messages_take_several_requests(aws: Aws, kind: str, name: str) -> None:
    count = 1_200 if kind in ("kinesis", "firehose") else 43
    await write(make_sink(kind, aws.options(kind, name), Path()), named(count=count))
    assert ids(aws, kind, name) == list(range(count))


@pytest.mark.parametrize("form", ["rows", "debezium", "cloudevents"])
async def test_characters_that_no_queue_stores_are_escaped(form: str) -> None:
    """The service stores U+FFFD in their place."""
    sink = make_sink("sqs", {"queue": "orders", "format": form}, Path())
    assert isinstance(sink, SqsSink)
    odd = "\ufffe \uffff \ufffd \U0010ffff \t\x7f"
    batch = change_batch(NAMED, [{"id": 1, "name": odd}], last=True)
    (entry,) = build_entries(sink, sink._make_messages(batch), "MessageBody", fifo=False)
    assert not {"\ufffe", "\uffff"} & set(entry["MessageBody"])
    assert odd in _list_texts(json.loads(entry["MessageBody"]))


def _list_texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _list_texts(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("kind", ["sns", "sqs"])
async def test_a_fifo_queue_drops_what_comes_again(aws: Aws, kind: str, name: str) -> None:
    options = {**aws.options(kind, f"{name}.fifo"), "key": ["id"]}
    sink = make_sink(kind, options, Path())
    await write(sink, named(count=4))
    await write(sink, named(count=4), named(4, version=2))
    assert sorted(ids(aws, kind, f"{name}.fifo")) == [0, 1, 2, 3, 4, 5]


async def test_a_key_s_records_have_one_partition_key(aws: Aws, name: str) -> None:
    options = {**aws.options("kinesis", name), "key": ["name"]}
    rows = [{"id": i, "name": f"n{i % 3}"} for i in range(9)]
    await write(make_sink("kinesis", options, Path()), change_batch(NAMED, rows, last=True))
    kinesis = aws.client("kinesis")
    (shard,) = kinesis.list_shards(StreamName=name)["Shards"]
    at = kinesis.get_shard_iterator(
        StreamName=name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )
    records = kinesis.get_records(ShardIterator=at["ShardIterator"])["Records"]
    keys = [record["PartitionKey"] for record in records]
    assert len(set(keys)) == 3
    assert keys[:3] == keys[3:6] == keys[6:]


class _Refusing:
    """Refuses some messages of each request, by turns of this list."""

    def __init__(self, sink: AwsSink, *refused: list[int], code: str) -> None:
        self.put, self.refused, self.code = sink.put_messages, list(refused), code
        self.sizes: list[int] = []

    async def __call__(self, messages: Any) -> Any:
        self.sizes.append(len(messages))
        places = self.refused.pop(0) if self.refused else []
        rest = [i for i in range(len(messages)) if i not in places]
        if rest:
            import pyarrow as pa

            await self.put(messages.take(pa.array(rest, pa.int64())))
        return [(place, MessageRefused(self.code, "not now")) for place in places]


async def test_only_what_was_refused_is_sent_again(
    aws: Aws, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.aws.sink._PAUSE_MIN_S", 0.001)
    monkeypatch.setattr("sinks.aws.sink._PAUSE_MAX_S", 0.002)
    sink = make_sink("sqs", aws.options("sqs", name), Path())
    assert isinstance(sink, AwsSink)
    refusing = _Refusing(sink, [1, 3], [0], code="ThrottlingException")
    monkeypatch.setattr(sink, "put_messages", refusing)
    await write(sink, named(count=5))
    assert refusing.sizes == [5, 2, 1]
    assert ids(aws, "sqs", name) == [0, 2, 4, 3, 1]


@pytest.mark.parametrize(
    ("code", "error"),
    [("ThrottlingException", TransientError), ("InvalidMessageContents", SinkRejected),
     ("KMSAccessDeniedException", ConfigError)],
)  # fmt: skip
async def test_what_stays_refused_is_an_error(
    aws: Aws, name: str, code: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink("sqs", aws.options("sqs", name), Path())
    assert isinstance(sink, AwsSink)
    monkeypatch.setattr("sinks.aws.sink._PAUSE_MIN_S", 0.001)
    monkeypatch.setattr("sinks.aws.sink._PAUSE_MAX_S", 0.002)
    monkeypatch.setattr(sink, "put_messages", _Refusing(sink, *[[0]] * 5, code=code))
    with pytest.raises(error, match=f"SQS queue {name}: {code}: not now"):
        await write(sink, named())


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("kind", AWS_SINKS)
async def test_requests_that_were_taken_are_not_sent_again(
    aws: Aws, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece fails in its third request: the feed goes on there."""
    monkeypatch.setattr("sinks.aws.sink._PAUSE_MIN_S", 0.001)
    monkeypatch.setattr("sinks.aws.sink._PAUSE_MAX_S", 0.002)
    sink = make_sink(kind, aws.options(kind, name), Path())
    assert isinstance(sink, AwsSink)
    monkeypatch.setattr(sink, "limits", replace(sink.limits, messages=5))
    refusing = _Refusing(sink, [], [], [0, 1, 2, 3, 4], code="ServiceUnavailable")
    monkeypatch.setattr(sink, "put_messages", refusing)
    batch = named(count=17)
    await sink.open("orders")
    saved = []

    async def save(offset: Offset) -> None:
        saved.append(offset)

    with pytest.raises(TransientError):
        await write_and_save(sink, batch, save)
    assert [offset.index for offset in saved] == [10]
    await sink.write(batch)
    await sink.aclose()
    assert sorted(ids(aws, kind, name)) == list(range(17))


@pytest.mark.parametrize("kind", AWS_SINKS)
@pytest.mark.parametrize("url", ["http://me:pass/word@127.0.0.1:1", "x://me:pass-word@127.0.0.1"])
async def test_an_address_in_the_environment_that_is_none_is_not_shown(
    kind: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    sink = make_sink(kind, {**MISSING[kind], "region": REGION}, Path())
    with pytest.raises(ConfigError, match="the address of the service is not http") as e:
        await sink.open("orders")
    assert "word" not in str(e.value)


@pytest.mark.parametrize("kind", AWS_SINKS)
async def test_a_message_that_is_too_large_is_named(aws: Aws, kind: str, name: str) -> None:
    batch = change_batch(NAMED, [{"id": 1, "name": "x" * 1_100_000}], version=7, last=True)
    with pytest.raises(SinkRejected, match=r"version 7: the event .* can be sent"):
        await write(make_sink(kind, aws.options(kind, name), Path()), batch)
    assert ids(aws, kind, name) == []


class _Telling(WebFront):
    """Has a service tell ``limit``, or answer the question with an error, and take all records."""

    def __init__(self, aws: Aws, limit: Any, refusal: tuple[int, str] | None = None) -> None:
        self.upstream, self.port, self.limit = aws.url, free_port(), limit
        self.refusal = refusal
        self.records: list[int] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        what = request.headers["X-Amz-Target"].partition(".")[2]
        body = await request.read()
        if what == "GetQueueAttributes" and self.refusal is not None:
            status, code = self.refusal
            return web.json_response({"__type": f"com.amazonaws.sqs#{code}"}, status=status)
        if what == "PutRecords":  # moto takes 1 MiB, whatever the stream says
            self.records += [len(b64decode(one["Data"])) for one in json.loads(body)["Records"]]
            return web.json_response({"Records": [{"SequenceNumber": "1", "ShardId": "s"}]})
        url = f"{self.upstream}{request.path_qs}"
        async with self.session.post(url, data=body, headers=request.headers) as answer:
            told = await answer.json(content_type=None)
            if what == "GetQueueAttributes":
                told["Attributes"] = {"MaximumMessageSize": self.limit}
            elif what == "DescribeStreamSummary":
                told["StreamDescriptionSummary"]["MaxRecordSizeInKiB"] = self.limit
            return web.json_response(told, status=answer.status)


def sized(size: int) -> ChangeBatch:
    return change_batch(NAMED, [{"id": 1, "name": "x" * size}], version=7, last=True)


@pytest.mark.parametrize(("limit", "most"), [(None, 1_048_576), ("2000", 2000)])
async def test_a_queue_says_how_large_a_message_may_be(
    aws: Aws, name: str, limit: str | None, most: int
) -> None:
    options = aws.options("sqs", name)
    url = aws.client("sqs").get_queue_url(QueueName=name)["QueueUrl"]
    if limit is not None:
        attributes = {"MaximumMessageSize": limit}
        aws.client("sqs").set_queue_attributes(QueueUrl=url, Attributes=attributes)
    rows = [{"id": number, "name": "x" * (most // 2)} for number in range(3)]
    for queue in (name, url):
        sink = make_sink("sqs", {**options, "queue": queue}, Path())
        await write(sink, change_batch(NAMED, rows, last=True))  # one a request
        with pytest.raises(SinkRejected, match=rf"version 7: .* at most {most - 160} can be sent"):
            await write(sink, sized(most))


@pytest.mark.parametrize("limit", ["0", "-1", "5", "many", "9" * 30, None, {"x": 1}])
async def test_a_queue_that_says_no_limit_has_the_least(aws: Aws, name: str, limit: Any) -> None:
    options = aws.options("sqs", name)
    with running_front(_Telling(aws, limit)) as front:
        sink = make_sink("sqs", {**options, "endpoint_url": front.url}, Path())
        await write(sink, sized(200_000))
        with pytest.raises(SinkRejected, match="at most 261984 can be sent"):
            await write(sink, sized(300_000))
    assert ids(aws, "sqs", name) == [1]


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(
    ("refusal", "error"),
    [((403, "AccessDeniedException"), None), ((400, "InvalidAttributeName"), None),
     ((503, "ServiceUnavailable"), TransientError), ((400, "ThrottlingException"), TransientError)],
)  # fmt: skip
async def test_a_queue_whose_limit_can_t_be_asked_for(
    aws: Aws, name: str, refusal: tuple[int, str], error: type[Exception] | None
) -> None:
    options = aws.options("sqs", name)
    with running_front(_Telling(aws, None, refusal)) as front:
        sink = make_sink("sqs", {**options, "endpoint_url": front.url}, Path())
        with pytest.raises(error) if error else nullcontext():
            await write(sink, sized(200_000))
        if not error:
            with pytest.raises(SinkRejected, match="can be sent; allow sqs:GetQueueAttributes"):
                await write(sink, sized(300_000))
    assert ids(aws, "sqs", name) == ([] if error else [1])


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (10_240, 10_485_504),
        (None, 1_048_320),
        (0, 1_048_320),
        (-1, 1_048_320),
        (5, 1_048_320),
        (2**40, 1_048_320),
    ],
)
async def test_a_stream_says_how_large_a_record_may_be(
    aws: Aws, name: str, limit: int | None, most: int
) -> None:
    options = aws.options("kinesis", name)
    with running_front(_Telling(aws, limit)) as front:
        sink = make_sink("kinesis", {**options, "endpoint_url": front.url}, Path())
        await write(sink, sized(most - 1000))
        with pytest.raises(SinkRejected, match=f"at most {most} can be sent"):
            await write(sink, sized(most))
    (size,) = front.records
    assert most - 1000 < size <= most


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.usefixtures("aws")  # whose account is in the environment
async def test_a_question_that_is_not_answered_is_asked_again(name: str) -> None:
    with Aws() as server:
        options = {**server.options("sqs", name), "timeout_s": 1}
        sink = make_sink("sqs", options, Path())
        with server.still(), pytest.raises(TransientError):
            await sink.open("orders")
        await sink.aclose()
        await write(make_sink("sqs", server.options("sqs", name), Path()), sized(300_000))
        assert ids(server, "sqs", name) == [1]


@pytest.mark.parametrize("limit", [0, -1, "x", "", None, 1e400, float("nan"), 2**31, [1]])
def test_nonsense_is_no_limit(limit: Any) -> None:
    assert parse_limit(limit, 7) == 7
    assert parse_limit("1048588", 7) == 1_048_588


@pytest.mark.parametrize("kind", AWS_SINKS)
async def test_a_target_or_a_server_that_is_not_there(aws: Aws, kind: str) -> None:
    def new(**more: Any) -> Sink:
        options = {**MISSING[kind], "region": REGION, "endpoint_url": aws.url, **more}
        return make_sink(kind, options, Path())

    with pytest.raises(ConfigError, match=r"nothing: .*(NotFound|NonExistent|DoesNotExist)"):
        await new().open("orders")
    with pytest.raises(TransientError, match="nothing: Could not connect"):
        await new(endpoint_url=f"http://127.0.0.1:{free_port()}").open("orders")
    with pytest.raises(ConfigError, match=r"profile \(nobody\) could not be found"):
        await new(profile="nobody").open("orders")


async def test_a_stream_that_was_made_again_is_not_gone_on_with(aws: Aws, name: str) -> None:
    options = aws.options("kinesis", name)

    def new(kept: dict[str, Any] | None) -> Sink:
        sink = make_sink("kinesis", options, Path())
        sink.check_record_form("orders", kept, None)
        return sink

    sink = new(None)
    await sink.open("orders")
    await sink.write(named())
    form = json.loads(json.dumps(sink.check_record_form("orders", None, None)))
    await sink.aclose()
    await write(new(form), named(2, version=2))
    aws.client("kinesis").delete_stream(StreamName=name)
    aws.client("kinesis").create_stream(StreamName=name, ShardCount=1)
    with pytest.raises(ConfigError, match="was deleted and made again since the feed wrote to it"):
        await new(form).open("orders")
    await write(new(None), named(4, version=3))
    assert ids(aws, "kinesis", name) == [4, 5]

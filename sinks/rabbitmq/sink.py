"""The RabbitMQ sink: each event as a persistent message, confirmed by the broker.

A queue has no transaction that could hold an offset too, so delivery is at least once: after a
failure, the events that were not confirmed come again, from their beginning, with the same ids.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json_formats import FORMAT
from sinks.messages.messages import Messages, RequestLimits
from sinks.messages.sink import MessageSink
from sinks.messages.tls import CA_FILE, find_ca_file, is_distrusted, make_tls_context
from sinks.rabbitmq.channel import Channel, NotConfirmed, Unroutable
from sinks.rabbitmq.pace import Pace, find_pace
from sinks.shared.options import CREDENTIALS, find_url, make_timeout, naming_extra
from sinks.shared.routes import Route
from tailer.changes import Offset
from tailer.errors import ConfigError, RowsRefused, TailerError, TargetRefused, TransientError
from tailer.network.backoff import Backoff
from tailer.network.reach import explain_unreached
from tailer.secrets.urls import parse_url
from tailer.settings import REQUIRED, Setting
from tailer.sink import FaultTable

T = TypeVar("T")

_MIB = 1024**2


SETTINGS: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "The broker: `amqp://user:password@host:port/vhost`, or `amqps://` for "
        "TLS.", form="an amqp:// or amqps:// URL",
        parse=partial(parse_url, schemes=("amqp", "amqps")),
        secret=True,
    ),
    **CREDENTIALS,
    "queue": Setting(
        "text", "{feed}", "The queue, if no exchange is set; `{feed}` is replaced by the feed's "
        "name.",
    ),
    "exchange": Setting(
        "text", "", "An existing exchange to which a queue is bound; columns in braces as in "
        "`routing_key`.",
        unset="the queue itself", advanced=True,
    ),
    "routing_key": Setting("text", "{feed}", "Routing key for the exchange; `{feed}` is replaced "
        "by the feed's name, any other name in braces by that column's value in each row.",
        advanced=True),
    "create": Setting("flag", True, "Declare the queue if it is missing.", advanced=True),
    "queue_type": Setting(
        "text", "quorum", "Type of the queue that is declared.",
        choices=("quorum", "classic", "stream"), advanced=True,
    ),
    "ca_file": CA_FILE,
    "timeout_s": make_timeout(30),
    "format": FORMAT,
}  # fmt: skip
#: What is on its way before the broker has confirmed the first of them; a single message may have
#: the broker's own limit before RabbitMQ 4 (`max_message_size`).
_LIMITS = RequestLimits(500, 4 * _MIB, message_bytes=128 * _MIB)
#: What stands between a message's exchange and its routing key.
_BETWEEN = "\n"
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f]+")
#: The pauses while a queue is full, in seconds.
_FULL_PAUSE_MIN_S, _FULL_PAUSE_MAX_S = 0.005, 0.5
#: By the number of the broker's reply. The reply's words show a message that is too large.
_FAULTS = FaultTable(for_good="402 403 404 406 502 503 504 530 540")
_NOT_FOUND = 404
#: How pika says it of a connection that was closed before it was open; without, it was only cut.
_CLOSED = re.compile(r"ConnectionClosedByBroker: \((\d+)\)")
#: What a reply says that will not be so for ever: of a node, of a virtual host, of connections.
_FOR_NOW = re.compile(r"\bdown\b|inaccessible|limit")


class RabbitmqSink(MessageSink):
    """Events as messages of a RabbitMQ queue, at least once."""

    faults = _FAULTS
    settings = SETTINGS
    kind = "rabbitmq"
    places = ("queue", "exchange", "routing_key")
    piece_rows = 5000

    def __init__(
        self, options: Mapping[str, Any], folder: Path, of_format: Mapping[str, Any]
    ) -> None:
        super().__init__(options["format"], of_format)
        with naming_extra("rabbitmq", "pika"):
            import pika
        self._pika: Any = pika
        self.given = options
        for name in self.places:
            if _NOT_IN_NAMES.search(options[name]):
                raise ConfigError(f"option {name!r} of sink 'rabbitmq' has a line break in it")
        self._ca = find_ca_file(options, folder)
        self._url = find_url("rabbitmq", options)
        self._tls = self._url.scheme == "amqps"
        self._location = f"RabbitMQ at {self._url.host_port(5671 if self._tls else 5672)}"
        self._channel: Channel | None = None
        self._pace = Pace()
        self._asked = False  # for what the queue takes

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> RabbitmqSink:
        """Create the sink. Options: :data:`SETTINGS` and those of the format."""
        return cls(options, folder, cls._format_options(options))

    def _make_route(self, *options: str) -> Route:
        named = (self.fill_option(option) for option in options)
        return Route(_BETWEEN.join(named), options[-1], (), _NOT_IN_NAMES, bytes_max=255)

    def _build_route(self) -> Route | None:
        return self._make_route("exchange", "routing_key") if self.given["exchange"] else None

    @property
    def place(self) -> str:
        return super().place if self.given["exchange"] else _BETWEEN + self.fill_option("queue")

    def format_place(self, place: str) -> str:
        exchange, key = place.split(_BETWEEN)
        return f"{exchange}/{key}" if exchange else key

    def check_columns(self, schema: pa.Schema) -> None:
        if self.given["exchange"]:
            for option in ("exchange", "routing_key"):
                self._make_route(option).check(schema)

    async def _connect(self) -> Offset | None:
        await self._translate_errors(partial(self._open_channel, create=self.given["create"]))
        return None

    async def _look_at_target(self) -> Offset | None:
        await self._translate_errors(partial(self._open_channel, create=False))
        return None

    def _build_parameters(self) -> Any:
        try:
            parameters = self._pika.URLParameters(self._url.to_text())
        except (ValueError, TypeError):
            # Its message may show the password.
            raise ConfigError(
                "option 'url' of sink 'rabbitmq' is not a URL of pika; see docs/sinks/rabbitmq.md"
            ) from None
        timeout_s = self.given["timeout_s"]
        parameters.connection_attempts = 1
        parameters.socket_timeout = parameters.stack_timeout = timeout_s
        parameters.blocked_connection_timeout = timeout_s
        parameters.client_properties = {"connection_name": f"delta-tailer {self._feed}"}
        if self._tls:
            context = make_tls_context("rabbitmq", self._ca) or ssl.create_default_context()
            parameters.ssl_options = self._pika.SSLOptions(context, self._url.host)
        return parameters

    async def _open_channel(self, *, create: bool) -> None:
        """Open a channel; check that the exchange or the queue is there."""
        self._channel = channel = Channel(self._build_parameters(), self.given["timeout_s"])
        await channel.open()
        if self.fill_option("exchange"):
            exchange = self._make_route("exchange")
            if not exchange.columns:
                named = exchange.mask_columns("")
                await channel.call("exchange_declare", named, passive=True)
            return
        queue = self.fill_option("queue")
        try:
            await channel.call("queue_declare", queue, passive=True)
        except self._pika.exceptions.ChannelClosedByBroker as e:
            if e.reply_code != _NOT_FOUND:
                raise
            if self.written_before:
                raise TargetRefused(
                    f"{self._location}: the queue {queue} is missing, with its unread messages, "
                    "and the feed has written to it before; declare it again to continue there, or "
                    "start over with `tailer offsets reset`"
                ) from None
            if not self.given["create"]:
                raise ConfigError(
                    f"{self._location}: there is no queue {queue}, and create is false; declare it"
                ) from None
            if create:
                await channel.open_channel()
                kind = {"x-queue-type": self.given["queue_type"]}
                await channel.call("queue_declare", queue, durable=True, arguments=kind)
        else:
            if create and not self._asked:
                self._pace = await find_pace(
                    channel, queue, self.given["queue_type"], self._pika.exceptions
                )
                self._asked = True

    async def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _send_messages(self, messages: Messages, then: Offset) -> None:  # noqa: ARG002  # not kept
        assert self._channel is not None
        for part in messages.split_into_requests(_LIMITS):
            try:
                await self._translate_errors(partial(self._publish_until_confirmed, part))
            except RowsRefused:  # for which the broker has closed the channel
                await self._translate_errors(self._channel.open_channel)
                raise

    async def _publish_until_confirmed(self, messages: Messages) -> None:
        """Publish messages until the broker has confirmed all of them, each after those before it.

        Raises :class:`NotConfirmed` if it takes none for the time of an answer.
        """
        patience = self.given["timeout_s"]
        largest = pc.max(pc.binary_length(messages.values)).as_py()
        backoff = Backoff(_FULL_PAUSE_MIN_S, _FULL_PAUSE_MAX_S)
        since = anyio.current_time()
        while len(messages):
            depth = await self._find_depth() if self._pace.needs_depth else None
            burst = self._pace.find_burst(len(messages), depth, largest)
            taken = await self._publish_messages(messages.slice(0, burst)) if burst else 0
            self._taken += taken
            messages = messages.slice(taken, len(messages))
            if taken == burst > 0:
                self._pace.note_success(burst, depth)
            elif burst:
                self._pace.note_rejection(await self._find_depth())
            if taken:
                backoff.reset()
                since = anyio.current_time()
            elif anyio.current_time() - since > patience:
                raise NotConfirmed
            else:
                await anyio.sleep(backoff.next_s())

    async def _find_depth(self) -> int | None:
        """Return how many messages the queue has; None for an exchange."""
        assert self._channel is not None
        if self.fill_option("exchange"):
            return None
        try:
            answer = await self._channel.call(
                "queue_declare", self.fill_option("queue"), passive=True
            )
        except self._pika.exceptions.ChannelClosedByBroker as e:
            if e.reply_code != _NOT_FOUND:
                raise
            raise Unroutable(e.reply_text) from e
        count: int = answer.method.message_count
        return count

    async def _publish_messages(self, messages: Messages) -> int:
        """Publish messages; return how many the broker has taken, from the first one on."""
        assert self._channel is not None
        made = partial(
            self._pika.BasicProperties,
            content_type="application/json",
            delivery_mode=2,  # it is kept on the disk
            app_id="delta-tailer",
        )
        ids, values = messages.ids.to_pylist(), messages.values.to_pylist()
        made_of = (made(message_id=event_id) for event_id in ids)
        places = (place.split(_BETWEEN) for place in messages.list_places(self.place))
        return await self._channel.publish(zip(places, values, made_of, strict=True))

    # Errors

    async def _translate_errors(self, work: Callable[[], Awaitable[T]]) -> T:
        from pika.adapters.utils.connection_workflow import AMQPConnectorException

        exceptions = self._pika.exceptions
        failures = (exceptions.AMQPError, AMQPConnectorException, NotConfirmed, Unroutable, OSError,
                    TimeoutError)  # fmt: skip
        try:
            return await work()
        except failures as e:
            raise self._to_tailer_error(e) from e

    def _to_tailer_error(self, e: Exception) -> TailerError:
        exceptions = self._pika.exceptions
        if isinstance(e, Unroutable):
            exchange, key = self.fill_option("exchange"), self.fill_option("routing_key")
            return ConfigError(
                f"{self._location}: no queue is bound to the exchange {exchange!r} for the routing "
                f"key {key!r}; bind one"
                if exchange
                else f"{self._location}: the queue {self.fill_option('queue')} is gone"
            )
        if isinstance(e, NotConfirmed):
            return TransientError(
                f"{self._location}: the broker has taken no message for "
                f"{self.given['timeout_s']:g} s; the queue is full, or has no leader"
            )
        cause = _find_innermost(e)
        said = getattr(e, "reply_text", "") or str(cause) or type(cause).__name__
        closed = _CLOSED.search(said)
        code = int(closed[1]) if closed else getattr(e, "reply_code", 0)
        what = f"{self._location}: {' '.join(said.split())}"
        if is_distrusted(cause):
            return ConfigError(f"{what}; see the option 'ca_file' of sink 'rabbitmq'")
        if (no_way := explain_unreached(self._location, cause, "the option 'url'")) is not None:
            return no_way
        if isinstance(e, exceptions.AuthenticationError) or "ACCESS_REFUSED" in what:
            return ConfigError(
                f"{what}; check the user, and what docs/sinks/rabbitmq.md says of it"
            )
        if "PRECONDITION_FAILED - message size" in what:
            return RowsRefused(what)
        if self.faults.verdict(code) == "for good" and not _FOR_NOW.search(said):
            return ConfigError(what)
        return TransientError(what)


def _find_innermost(e: BaseException) -> BaseException:
    """Return the cause of a failed connection; pika wraps it several times."""
    inner = [*getattr(e, "exceptions", ()), getattr(e, "exception", None), *e.args]
    failures = [each for each in inner if isinstance(each, BaseException)]
    return _find_innermost(failures[-1]) if failures else e

"""The Pub/Sub sink: each event as a message to a topic of Google Cloud Pub/Sub, at least once.

A request has messages of one ordering key at most: the service refuses others. So with a key, each
request has the events of one row, or of the rows that share an ordering key by a hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
from msgspec import structs

from sinks.formats.json_formats import FORMAT, keyed_settings
from sinks.messages.in_flight import IN_FLIGHT, send_requests
from sinks.messages.messages import Messages, RequestLimits
from sinks.messages.retry import retry_attempts
from sinks.messages.sink import MessageSink
from sinks.messages.tls import is_distrusted
from sinks.shared.misread import translate_misreads
from sinks.shared.options import make_timeout, naming_extra
from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, TailerError, TargetRefused, TransientError
from tailer.network.backoff import Backoff
from tailer.network.reach import explain_unreached
from tailer.secrets.urls import Url, UrlError, parse_url
from tailer.settings import REQUIRED, Setting
from tailer.sink import FaultTable

if TYPE_CHECKING:
    from sinks.pubsub.client import Connection

T = TypeVar("T")
_GOOGLE = Url("https", "pubsub.googleapis.com")
_TOPIC = re.compile(r"projects/[^/\s]+/topics/[^/\s]+")


def _check_topic(text: str) -> str:
    if not _TOPIC.fullmatch(text):
        raise ValueError(text)
    return text


def _parse_endpoint(text: str) -> Url | None:
    if not text:
        return None
    url = parse_url(text, ("https", "http"), login=False)
    if url.path.strip("/"):
        raise UrlError("it has a path, and gRPC has none")
    return url


def _find_endpoint() -> Url:
    """Return where the service is, where no option says it."""
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    if not emulator:
        return _GOOGLE
    try:
        return parse_url(f"http://{quote(emulator, '[]:')}", ("http",))
    except UrlError as e:
        raise ConfigError("PUBSUB_EMULATOR_HOST is not host:port") from e


SETTINGS: dict[str, Setting] = {
    "topic": Setting(
        "text", REQUIRED, "The topic; `{feed}` is replaced by the feed's name.",
        form="projects/PROJECT/topics/TOPIC", parse=_check_topic,
    ),
    "service_account_file": Setting(
        "text", "", "JSON file of a service account.",
        unset="`GOOGLE_APPLICATION_CREDENTIALS`, gcloud's login, or the machine's identity",
    ),
    "endpoint_url": Setting(
        "text", None, "Address of the service, such as a region's; http:// is for emulators, "
        "without credentials.", form="http(s)://host[:port]", parse=_parse_endpoint,
        unset="`PUBSUB_EMULATOR_HOST`, or pubsub.googleapis.com", advanced=True,
    ),
    "ordering_keys": Setting(
        "whole", 0, "Number of ordering keys that share the rows, by a hash of their `key`; 0 "
        "gives each row its own.", least=0, most=1_000_000, advanced=True,
    ),
    "timeout_s": make_timeout(30),
    "in_flight": structs.replace(IN_FLIGHT, default=64),
    "format": FORMAT,
}  # fmt: skip
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 5.0
#: The least pause at a quota, which is one of a second: 1 MB of an ordering key, say.
_QUOTA_S = 1.0
#: What an ordering key may have, in bytes.
_KEY_BYTES = 1024
#: What a message has beside its text: its key, its id and the names.
_OVERHEAD = _KEY_BYTES + 176
#: What the service takes of a key in a second, and in a request.
_LIMITS = RequestLimits(
    1000, 1_000_000, 10_000_000 - 1000 - _OVERHEAD, overhead=_OVERHEAD, one_key=True
)
#: By the status, or by the reason of one that is listed. What is not here passes: a quota, a
#: time-out, a service that is away.
_FAULTS = FaultTable(
    for_good="PERMISSION_DENIED UNAUTHENTICATED NOT_FOUND FAILED_PRECONDITION UNIMPLEMENTED",
    unclear="INVALID_ARGUMENT",
    # The schema of the topic refuses a message; the request's others are not taken either.
    rows="INVALID_*_MESSAGE",
)
#: A question that the sink can do without.
_UNTOLD = ("PERMISSION_DENIED", "UNIMPLEMENTED")
_REMEDIES = {
    "NOT_FOUND": "; create the topic, or change the option 'topic'",
    "PERMISSION_DENIED": "; give the account roles/pubsub.publisher on the topic",
    "UNAUTHENTICATED": "; check the account",
    "UNIMPLEMENTED": "; check endpoint_url",
}


class PubsubSink(MessageSink):
    """Events as messages to a topic of Pub/Sub, at least once."""

    faults = _FAULTS
    settings = SETTINGS
    kind = "pubsub"
    places = ("topic",)

    def __init__(
        self, options: Mapping[str, Any], folder: Path, of_format: Mapping[str, Any]
    ) -> None:
        """Create the sink. Options: :data:`SETTINGS`; ``folder`` is what its paths are relative
        to."""
        super().__init__(options["format"], of_format)
        # Else gRPC writes lines of its own between those of the log.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        with naming_extra("pubsub", "google-cloud-pubsub"):
            from sinks.pubsub import client
        self._client: Any = client
        self.given = options
        file = options["service_account_file"]
        self._account_file = folder / file if file else None
        self._connection: Connection | None = None

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        return keyed_settings(format)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> PubsubSink:
        return cls(options, folder, cls._format_options(options))

    @property
    def _location(self) -> str:
        return f"Pub/Sub topic {self.fill_option('topic').rpartition('/')[2]}"

    async def _connect(self) -> Offset | None:
        topic = self.fill_option("topic")
        if not _TOPIC.fullmatch(topic):
            raise ConfigError(f"option 'topic' of sink 'pubsub': {topic!r} can't be a topic")
        url: Url = self.given["endpoint_url"] or _find_endpoint()
        tls = url.scheme == "https"
        address, timeout_s = url.host_port(443 if tls else 80), self.given["timeout_s"]
        self._connection = self._client.Connection(address, topic, timeout_s, tls=tls)
        if tls:
            await self._translate_errors(self._connection.log_in(self._account_file))
        await self._translate_errors(self._check_topic(self._connection))
        return None

    async def _check_topic(self, connection: Connection) -> None:
        """Raise the error of a topic that is missing, or that the account may not publish to."""
        told = False
        try:
            if await connection.may_publish():
                return
            told = True
        except self._client.RpcError as e:
            # An emulator does not know the question, and who may not ask it may still publish.
            if e.code().name not in _UNTOLD:
                raise
        try:
            await connection.find_topic()
        except self._client.RpcError as e:
            if e.code().name != "PERMISSION_DENIED":
                raise
        if told:
            raise TargetRefused(
                f"{self._location}: the account may not publish{_REMEDIES['PERMISSION_DENIED']}"
            )

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    def _make_messages(self, batch: ChangeBatch) -> Messages:
        messages = super()._make_messages(batch)
        if messages.keys is None:
            return messages
        return replace(messages, keys=name_keys(messages.keys, self.given["ordering_keys"]))

    async def _send_messages(self, messages: Messages, then: Offset) -> None:  # noqa: ARG002  # not kept
        at_once = self.given["in_flight"]
        await send_requests(messages, _LIMITS, at_once, self._send_request, self._note_taken)

    async def _send_request(self, messages: Messages) -> None:
        ids, values = messages.ids.to_pylist(), messages.values.to_pylist()
        key = "" if messages.keys is None else messages.keys[0].as_py().decode()
        connection = self._connection
        assert connection is not None

        async def attempt() -> None:
            receipts = await self._translate_errors(connection.publish(ids, values, key))
            if receipts != len(ids):
                raise TransientError(
                    f"{self._location}: its answer does not say what became of each message"
                )

        await retry_attempts(attempt, Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S))

    async def _translate_errors(self, work: Awaitable[T]) -> T:
        client = self._client
        with translate_misreads(self._location):
            try:
                return await work
            except client.RpcError as e:
                raise self._explain_failure(e) from e

    def _explain_failure(self, e: Any) -> TailerError:
        code, reason = e.code().name, self._client.find_reason(e)
        if self.faults.verdict(reason) == "rows":
            code = reason
        said = " ".join((e.details() or "").split())[: self._client.SHOWN]
        what = f"{self._location}: {code}: {said}"
        if is_distrusted(e):
            return ConfigError(
                f"{what}; name the authorities to trust in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
            )
        unreached = explain_unreached(self._location, e, "the option 'endpoint_url'")
        error = unreached or self.faults.error(code, f"{what}{_REMEDIES.get(code, '')}")
        if code == "RESOURCE_EXHAUSTED" and isinstance(error, TransientError):
            error.retry_after_s = _QUOTA_S
        return error


def name_keys(keys: pa.BinaryArray, count: int) -> pa.BinaryArray:
    """Return ordering keys: of each row's key, or one of ``count``. Equal keys give equal ones."""
    found = keys.dictionary_encode("encode")
    named = pa.array([_name_key(key or b"", count) for key in found.dictionary.to_pylist()])
    return named.cast(pa.binary()).take(found.indices)


def _name_key(key: bytes, count: int) -> str:
    """Return an ordering key. It is a text that is neither empty nor long; what is none of these
    is hashed."""
    digest = blake2b(key, digest_size=16)
    if count:
        return str(int.from_bytes(digest.digest()) % count)
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if 0 < len(key) <= _KEY_BYTES and text else digest.hexdigest()

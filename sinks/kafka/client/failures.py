"""From a Kafka client's errors to the family of errors that says who must act."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sinks.kafka.client.patched_client import attentive_client
from sinks.kafka.options import KafkaOptions
from tailer.errors import ConfigError, SinkRejected, TailerError, TargetRefused, TransientError
from tailer.network.reach import explain_unreached
from tailer.sink import FaultTable

T = TypeVar("T")


def _make_pattern(mark: str) -> str:
    return f"*{mark.replace(' ', '?')}*"


#: The names of the errors of a fenced producer.
_FENCED = ("ProducerFenced", "InvalidProducerEpoch")

#: Errors that no retry heals, by a part of the error's name or text, and the operator's remedy.
_REFUSED = (
    ("TopicAuthorizationFailed", "the user may not use this topic: grant it Write and Describe"),
    ("TransactionalIdAuthorization", "grant the user Write on the transactional id"),
    ("ClusterAuthorization", "the user may not do this on the cluster"),
    ("GroupAuthorization", "the user may not do this with the group"),
    ("PolicyViolation", "the broker's policy forbids it"),
)
#: Those of a batch, or of all batches.
_NOT_TAKEN = (
    ("MessageSizeTooLarge", "lower batch_bytes, or raise the topic's max.message.bytes"),
    ("RecordListTooLarge", "lower batch_bytes"),
    ("InvalidRecord", "is the topic compacted, and do the records have keys?"),
)
#: Options that no cluster, or not this one, supports.
_MISCONFIGURED = (
    ("InvalidTransactionTimeout", "lower transaction_timeout_ms to the broker's maximum"),
    ("InvalidReplicationFactor", "start more brokers, or create the topic yourself"),
    ("InvalidTopic", "choose another topic"),
    ("InvalidConfig", "correct the brokers' defaults, or create the topic yourself"),
)
#: The same for connections. A client library only logs these and keeps trying.
_UNWELCOME = (
    ("SaslAuthenticationFailed", "check the user name, the password and sasl_mechanism"),
    ("UnsupportedSaslMechanism", "choose a sasl_mechanism that the listener offers"),
    ("IllegalSaslState", "check security_protocol: this listener wants no SASL, or another"),
    ("CERTIFICATE_VERIFY_FAILED", "check ssl_cafile, and the name in the broker's certificate"),
    ("BAD_CERTIFICATE", "the listener asks for ssl_certfile and ssl_keyfile of its own clients"),
    ("CERTIFICATE_REQUIRED", "the listener asks for ssl_certfile and ssl_keyfile"),
    ("WRONG_VERSION_NUMBER", "check security_protocol: this listener does not speak TLS"),
    # The first bytes of a TLS alert, read as a length.
    ("Invalid frame length: 35251", "check security_protocol: this listener wants TLS"),
    ("no token from", "check the options sasl_oauthbearer_..."),
)
#: What the names and texts of errors mean; what is in none of these passes.
FAULTS = FaultTable(
    for_good=" ".join(_make_pattern(mark) for mark, _ in (*_REFUSED, *_UNWELCOME, *_MISCONFIGURED)),
    unclear=" ".join(_make_pattern(mark) for mark, _ in _NOT_TAKEN),
)
#: Errors that may pass, and may also mean that the listener speaks another protocol.
_STRANGE = (("UNEXPECTED_EOF", "check security_protocol: this listener may not speak TLS"),)
# The first bytes of an answer in HTTP, read as a length.
_HTTP_LENGTH = f"Invalid frame length: {int.from_bytes(b'HTTP')}"
#: The client's delay before it tries again: different each time, and of no interest.
_BACKOFF = re.compile(r" \(backoff [0-9.]+ secs\)")
#: The client's words about its own requests, and the protocol's numbers of errors.
_INTERNALS = re.compile(r"Request '.*' failed with response '.*'\.?|\[Error \d+\] ?")
#: The library's prefixes of errors, and where they occurred.
_NAMES = re.compile(r"(Unexpected error in \w+: *)?\b[A-Z]\w+Error\b:?")
_FIRST_SPELL_MS = 500
_KAFKA_PORT = 9092
_PROBE_S = 2.0


class Fenced(TransientError):
    """Another producer has the same transactional id, or the transaction took too long.

    The progress topic shows which of the two it was.
    """


def to_tailer_error(error: BaseException, doing: str) -> TailerError:
    """Return our error for a client's error; ``doing`` says what was being done."""
    if isinstance(error, TailerError):
        return error
    name, text = type(error).__name__, str(error)
    both = f"{name} {text}"
    if any(mark in both for mark in _FENCED):
        return Fenced(f"Kafka ended the transaction while {doing}: {_format_cause(name, text)}")
    for mark, remedy in (*_REFUSED, *_UNWELCOME, *_NOT_TAKEN):
        if mark in both:
            said = f"Kafka refused {doing}: {_format_cause(name, text)}; {remedy}"
            return FAULTS.error(both, said)
    for mark, remedy in _MISCONFIGURED:
        if mark in both:
            return ConfigError(f"Kafka refused {doing}{_format_broker_message(text)}; {remedy}")
    return TransientError(f"Kafka failed {doing}: {_format_cause(name, text)}")


def _format_cause(name: str, text: str) -> str:
    if name == "NodeNotReadyError":
        return "no broker is reachable"  # its own text speaks of a node_id
    text = _INTERNALS.sub("", " ".join(text.split())).strip().removesuffix(":")[:300]
    return text if name in text else f"{name}: {text}" if text else name


def _format_broker_message(text: str) -> str:
    """Return the broker's message for people, after a colon; empty if there is none."""
    said = _NAMES.sub("", _INTERNALS.sub("", " ".join(text.split()))).strip(" :.")[:300]
    return f": {said}" if said else ""


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Raise the errors of the block as errors of ours."""
    try:
        yield
    except TailerError:
        raise
    except Exception as e:
        raise to_tailer_error(e, doing) from e


class _Heard(logging.Handler):
    """What some clients log while they connect: the only place where they give the cause.

    ``clients`` are those that are listened to, with the thread that creates them: other feeds'
    clients log to the same place. ``cause`` is why a connection failed last, where a time-out
    replaces no other cause: the last try of a spell may have had a few milliseconds. ``refusal`` is
    a line that shows that this client will never be accepted, with the remedy.
    """

    def __init__(self, clients: list[Any]) -> None:
        super().__init__(logging.WARNING)
        self.cause: str | None = None
        self.refusal: tuple[str, str] | None = None
        self._clients = clients
        self._maker = threading.current_thread()

    def emit(self, record: logging.LogRecord) -> None:
        speaker = threading.current_thread()
        if speaker is not self._maker and not any(_runs_in(c, speaker) for c in self._clients):
            return
        line = _BACKOFF.sub("", record.getMessage())
        failed = line.startswith(("Connection failed", "Bootstrap connection"))
        if failed and (self.cause is None or "timed out" not in line):
            self.cause = line
        for mark, remedy in _UNWELCOME:
            if mark in line:
                self.refusal = line, remedy


def _runs_in(client: Any, thread: threading.Thread) -> bool:
    """Return whether a client works in this thread; if that is unknown, it may.

    Remove when kafka-python raises why a connection failed, instead of logging it.
    """
    return getattr(getattr(client, "_net", None), "_io_thread", thread) is thread


def connect_client(make: Callable[..., T], options: KafkaOptions) -> T:
    """Return what ``make`` returns, called with settings of kafka-python that limit its time.

    kafka-python keeps trying with a wrong password as it does with an unavailable broker, and in
    the end only reports a time-out. So it gets several short time limits, and its log is read after
    each: an error that no retry heals is raised at once, and all others with their cause when time
    is up.
    """
    left, spell = options.bootstrap_timeout_ms, _FIRST_SPELL_MS
    clients: list[Any] = []

    def make_client(**settings: Any) -> Any:
        clients.append(attentive_client(**settings))
        return clients[-1]

    with _listen_to_log(clients) as heard:
        while True:
            spell = min(spell * 2, left)
            left -= spell
            try:
                return make(bootstrap_timeout_ms=spell, kafka_client=make_client)
            except Exception as e:  # noqa: BLE001  # all go to _give_up
                # A client that fails in its constructor leaves its thread and its sockets open.
                while clients:
                    clients.pop().close()
                _give_up(e, heard, options, last=left <= 0)


@contextmanager
def _listen_to_log(clients: list[Any]) -> Iterator[_Heard]:
    heard, logger = _Heard(clients), logging.getLogger("kafka")
    logger.addHandler(heard)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)


def _give_up(error: Exception, heard: _Heard, options: KafkaOptions, *, last: bool) -> None:
    servers = options.bootstrap_servers
    found = to_tailer_error(error, f"connecting to {servers}")
    if isinstance(found, SinkRejected):
        raise found from error
    if heard.refusal is not None:
        line, remedy = heard.refusal
        raise TargetRefused(f"Kafka at {servers} does not let us in: {line}; {remedy}") from error
    if not last and _HTTP_LENGTH not in (heard.cause or ""):
        return
    listed = [each.strip() for each in servers.split(",")]
    if strangers := [each for each in listed if _speaks_http(each)]:
        kind = TargetRefused if strangers == listed else TransientError  # the others may come back
        raise kind(
            f"{', '.join(strangers)} speaks HTTP and is no Kafka broker; check the option "
            "'bootstrap_servers'"
        ) from error
    if not last:
        return
    seconds = options.bootstrap_timeout_ms / 1000
    cause = heard.cause or str(error)
    no_way = explain_unreached(
        f"no Kafka broker at {servers} has answered for {seconds:g} s",
        Exception(cause),
        "the option 'bootstrap_servers'",
    )
    if no_way is not None:
        raise no_way from error
    remedy = next((f"; {then}" for mark, then in _STRANGE if mark in cause), "")
    if not remedy and options.security.security_protocol == "PLAINTEXT":
        remedy = "; if they want TLS or a password, set security_protocol"
    raise TransientError(
        f"no Kafka broker at {servers} has answered for {seconds:g} s: {cause}{remedy}"
    ) from error


def _speaks_http(server: str) -> bool:
    """Ask in HTTP: a broker ends such a connection without a word."""
    try:
        place = urlsplit(f"//{server.rpartition('://')[2]}")
        address = place.hostname or "", place.port or _KAFKA_PORT
        with socket.create_connection(address, _PROBE_S) as connection:
            connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except (OSError, ValueError):
        return False

"""From what a Kafka client raises to the family of errors that says who must act."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sinks.kafka.driver import Fenced
from sinks.kafka.options import KafkaOptions
from tailer.errors import SinkRejected, TailerError, TransientError

__all__ = ["connected", "failure", "raised_as_failures"]

T = TypeVar("T")

_FENCED = ("ProducerFenced", "InvalidProducerEpoch", "_FENCED", "PRODUCER_FENCED")
_FENCED_CODES = ("INVALID_PRODUCER_EPOCH",)

#: What no retry heals, by a part of the error's name or text, and what its operator can do.
_REFUSED = (
    ("TopicAuthorizationFailed", "the user may not use this topic: grant it Write and Describe"),
    ("TOPIC_AUTHORIZATION", "the user may not use this topic: grant it Write and Describe"),
    ("TransactionalIdAuthorization", "grant the user Write on the transactional id"),
    ("TRANSACTIONAL_ID_AUTHORIZATION", "grant the user Write on the transactional id"),
    ("ClusterAuthorization", "the user may not do this on the cluster"),
    ("CLUSTER_AUTHORIZATION", "the user may not do this on the cluster"),
    ("GroupAuthorization", "the user may not do this with the group"),
    ("MessageSizeTooLarge", "lower batch_bytes, or raise the topic's max.message.bytes"),
    ("RecordListTooLarge", "lower batch_bytes"),
    ("MSG_SIZE_TOO_LARGE", "lower batch_bytes, or raise the topic's max.message.bytes"),
    ("InvalidRecord", "is the topic compacted, and do the records have keys?"),
    ("INVALID_RECORD", "is the topic compacted, and do the records have keys?"),
    ("InvalidTransactionTimeout", "lower transaction_timeout_ms to the broker's maximum"),
    ("INVALID_TRANSACTION_TIMEOUT", "lower transaction_timeout_ms to the broker's maximum"),
    ("PolicyViolation", "the broker's policy forbids it"),
    ("InvalidReplicationFactor", "lower replication_factor, or start more brokers"),
    ("InvalidTopic", "choose another topic"),
    ("InvalidConfig", "correct topic_config"),
)
#: The same for connections. A client library only logs these and goes on trying.
_UNWELCOME = (
    ("SaslAuthenticationFailed", "check the user name, the password and sasl_mechanism"),
    ("SASL authentication error", "check the user name, the password and sasl_mechanism"),
    ("UnsupportedSaslMechanism", "choose a sasl_mechanism that the listener offers"),
    ("Unsupported SASL mechanism", "choose a sasl_mechanism that the listener offers"),
    ("IllegalSaslState", "check security_protocol: this listener wants no SASL, or another"),
    ("CERTIFICATE_VERIFY_FAILED", "check ssl_cafile, and the name in the broker's certificate"),
    ("certificate verify failed", "check ssl_cafile, and the name in the broker's certificate"),
    ("CERTIFICATE_REQUIRED", "the listener asks for ssl_certfile and ssl_keyfile"),
    ("certificate required", "the listener asks for ssl_certfile and ssl_keyfile"),
    ("WRONG_VERSION_NUMBER", "check security_protocol: this listener does not speak TLS"),
    ("wrong version number", "check security_protocol: this listener does not speak TLS"),
    ("no token from", "check the options sasl_oauthbearer_..."),
)
_LOGGED_MAX = 20


def failure(error: BaseException, doing: str) -> TailerError:
    """The error of ours for one of a client's; ``doing`` says at what it happened."""
    if isinstance(error, TailerError):
        return error
    name, text = type(error).__name__, str(error)
    both = f"{name} {text}"
    if any(mark in both for mark in (*_FENCED, *_FENCED_CODES)):
        return Fenced(f"Kafka ended the transaction while {doing}: {_short(name, text)}")
    for mark, remedy in (*_REFUSED, *_UNWELCOME):
        if mark in both:
            return SinkRejected(f"Kafka refused {doing}: {_short(name, text)}; {remedy}")
    return TransientError(f"Kafka failed {doing}: {_short(name, text)}")


def _short(name: str, text: str) -> str:
    text = " ".join(text.split())[:300]
    return text if name in text else f"{name}: {text}" if text else name


@contextmanager
def raised_as_failures(doing: str) -> Iterator[None]:
    """What the block raises, as errors of ours."""
    try:
        yield
    except TailerError:
        raise
    except Exception as e:
        raise failure(e, doing) from e


class _Heard(logging.Handler):
    """Keeps what a client logs: the only place where it says why it can't connect."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.changed = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.lines = [*self.lines, record.getMessage()][-_LOGGED_MAX:]

    def unwelcome(self) -> tuple[str, str] | None:
        """A line that says that this client will never be let in, and what to do about it."""
        for line in self.lines:
            for mark, remedy in _UNWELCOME:
                if mark in line:
                    return line, remedy
        return None


def connected(make: Callable[[int], T], options: KafkaOptions) -> T:
    """What ``make`` returns, given the milliseconds that it may take to connect.

    kafka-python goes on trying with a wrong password as it does with a broker that is away, and
    in the end says only that time is up. So it is given short spells, and its log is read after
    each: what no retry heals is raised at once, and all else with its cause when time is up.
    """
    left, spell = options.bootstrap_timeout_ms, 1_000
    heard = _Heard()
    logger = logging.getLogger("kafka")
    logger.addHandler(heard)
    try:
        while True:
            spell = min(spell * 2, left)
            left -= spell
            try:
                return make(spell)
            except Exception as e:
                _give_up(e, heard, options, last=left <= 0)
    finally:
        logger.removeHandler(heard)


def _give_up(error: Exception, heard: _Heard, options: KafkaOptions, *, last: bool) -> None:
    servers = options.bootstrap_servers
    found = failure(error, f"connecting to {servers}")
    if isinstance(found, SinkRejected):
        raise found from error
    refused = heard.unwelcome()
    if refused is not None:
        line, remedy = refused
        raise SinkRejected(f"Kafka at {servers} does not let us in: {line}; {remedy}") from error
    if not last:
        return
    why = heard.lines[-1] if heard.lines else str(error)
    seconds = options.bootstrap_timeout_ms / 1000
    raise TransientError(
        f"no Kafka broker at {servers} has answered for {seconds:g} s: {why}"
    ) from error

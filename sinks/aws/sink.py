"""What the sinks of AWS have in common: a client, requests of several messages, and errors.

A request may fail for some of its messages. Only these are sent again: they come after the others
of their request then. Delivery is at least once.
"""

from __future__ import annotations

import datetime as dt
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NotConnected
from msgspec import structs

from sinks.aws.answers import MessageRefused, NoAnswer, make_bounded_config
from sinks.formats.json_formats import FORMAT, keyed_settings
from sinks.messages.in_flight import IN_FLIGHT, send_requests
from sinks.messages.messages import Messages, RequestLimits
from sinks.messages.retry import retry_attempts
from sinks.messages.sink import MessageSink
from sinks.messages.tls import is_distrusted
from sinks.shared.misread import translate_misreads
from sinks.shared.options import make_timeout
from tailer.changes import Offset
from tailer.errors import ConfigError, RowsRefused, TailerError, TransientError
from tailer.network.backoff import Backoff
from tailer.network.reach import explain_unreached
from tailer.secrets import keep_secrets
from tailer.secrets.urls import parse_url
from tailer.settings import Setting
from tailer.sink import FaultTable

T = TypeVar("T")
#: What to do about botocore's errors that name none of our options.
_REMEDIES = {
    "NoRegionError": " Name it in the option 'region', or in AWS_REGION",
    "NoCredentialsError": ", nor a profile: name one in the option 'profile', or set "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
}


def _check_address(text: str) -> str:
    if text:
        parse_url(text, ("http", "https"), login=False)
    return text


CONNECTION: dict[str, Setting] = {
    "region": Setting(
        "text", "", "The region.", unset="`AWS_DEFAULT_REGION`, or the profile's",
    ),
    "profile": Setting("text", "", "Profile of `~/.aws/config`.", unset="`AWS_PROFILE`",
        advanced=True),
    "endpoint_url": Setting(
        "text", "", "Address of the service, if not AWS.", form="http(s)://host[:port]",
        parse=_check_address, unset="`AWS_ENDPOINT_URL`, or AWS", advanced=True,
    ),
    "timeout_s": make_timeout(30),
    "in_flight": IN_FLIGHT,
    "format": FORMAT,
}  # fmt: skip
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 5.0
#: By the code. What is not here passes: limits, time-outs, a service that is away.
_FAULTS = FaultTable(
    for_good="""
        *AccessDenied* *Authorization* *ExpiredToken* *InvalidAccessKey* *InvalidClientToken*
        *NotAuthorized* *SignatureDoesNotMatch* *UnrecognizedClient* *DoesNotExist* *NonExistent*
        *NotFound* [Kk][Mm][Ss]*Disabled* [Kk][Mm][Ss]*InvalidState* [Kk][Mm][Ss]*OptInRequired*
    """,
    unclear="""
        ValidationException ValidationError InvalidArgument* InvalidParameter* InvalidRequest*
        SerializationException *BatchRequestTooLong *RequestEntityTooLarge*
    """,
    rows="InvalidMessageContents *MessageTooLong",
    passing="*Throttl* *RequestExpired*",
)
_ACCOUNT = re.compile(
    "AccessDenied|Authoriz|ExpiredToken|AccessKey|ClientToken|Signature|UnrecognizedClient"
)
#: Codes of a question that the sink can do without.
_UNTOLD = re.compile("AccessDenied|NotAuthorized|InvalidAttribute|Unsupported|NotImplemented")


@cache
def _make_session(profile: str | None) -> Any:
    """Return a session, which keeps the descriptions of services that it has read."""
    from aiobotocore.session import AioSession

    return AioSession(profile=profile)


def lone_settings(format: str) -> Mapping[str, Setting]:  # noqa: A002  # the option's name
    """Return the same for messages that have nothing beside their text: events of the format `rows`
    have their ids in it."""
    settings = dict(keyed_settings(format))
    if "ids" in settings:
        settings["ids"] = structs.replace(settings["ids"], default=True)
    return settings


class AwsSink(MessageSink):
    """Events as messages of a service of AWS, at least once."""

    faults = _FAULTS
    limits: RequestLimits
    #: A message may have a key beside its text.
    has_keys: ClassVar = True
    piece_rows = 5000

    def __init__(self, options: Mapping[str, Any], of_format: Mapping[str, Any]) -> None:
        super().__init__(options["format"], of_format)
        self.given = options
        self.client: Any = None
        self._open = AsyncExitStack()

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        return keyed_settings(format) if cls.has_keys else lone_settings(format)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> AwsSink:  # noqa: ARG003  # no paths
        """Create the sink. Options: those of the class's settings and of the format."""
        return cls(options, cls._format_options(options))

    @property
    @abstractmethod
    def location(self) -> str:
        """What errors call the target."""

    @abstractmethod
    async def check_target(self) -> dt.datetime | None:
        """Find the target; return when it was made, if the service says it."""

    @abstractmethod
    async def put_messages(self, messages: Messages) -> Sequence[tuple[int, MessageRefused]]:
        """Send one request; return the places of the messages that were not taken."""

    async def ask_service(self, question: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return what a service tells; nothing if the account may not ask, or the service does not
        know the question."""
        try:
            return await question
        except ClientError as e:
            if _UNTOLD.search(str(e.response.get("Error", {}).get("Code", ""))):
                return {}
            raise

    def name_groups(self, messages: Messages) -> list[str]:
        """Return what keeps the messages of a key in order: the same text for the same key."""
        if messages.keys is None:
            return [self._feed] * len(messages)
        keys = messages.keys.to_pylist()
        return [blake2b(key or b"", digest_size=16).hexdigest() for key in keys]

    async def _connect(self) -> Offset | None:
        async def connect() -> None:
            options = self.given
            config = make_bounded_config(
                connect_timeout=min(10.0, options["timeout_s"]),
                read_timeout=options["timeout_s"],
                retries={"total_max_attempts": 1},
                max_pool_connections=options["in_flight"],
            )
            session = _make_session(options["profile"] or None)
            account = await session.get_credentials()
            if account is not None:
                keys = await account.get_frozen_credentials()
                keep_secrets((keys.secret_key, keys.token or ""))
            created = session.create_client(
                self.kind,
                region_name=options["region"] or None,
                endpoint_url=options["endpoint_url"] or None,
                config=config,
            )
            try:
                self.client = await self._open.enter_async_context(created)
                _check_address(self.client.meta.endpoint_url)  # which the environment may name
            except ValueError as e:
                # Its message shows the address, and any password in it.
                raise ConfigError(
                    f"{self.location}: the address of the service is not http(s)://host[:port]; see"
                    " the option endpoint_url, AWS_ENDPOINT_URL, or the profile"
                ) from e
            made = await self.check_target()
            self.made = None if made is None else f"{made.timestamp():.3f}"

        await self._translate_errors(connect)
        if self.made_before not in (None, self.made):
            raise ConfigError(
                f"{self.location} was deleted and made again since the feed wrote to it; set with "
                "`tailer offsets set` or `reset` where the feed resumes"
            )
        return None

    async def _disconnect(self) -> None:
        self.client = None
        await self._open.aclose()

    async def _send_messages(self, messages: Messages, then: Offset) -> None:  # noqa: ARG002  # not kept
        at_once = self.given["in_flight"]
        await send_requests(messages, self.limits, at_once, self._send_request, self._note_taken)

    async def _send_request(self, messages: Messages) -> None:
        left = messages

        async def attempt() -> None:
            nonlocal left
            failed = await self._translate_errors(lambda: self.put_messages(left))
            if failed:
                places = pa.array([place for place, _ in failed], pa.int64())
                left = left.take(places)
                raise self._to_tailer_error(failed[0][1], named=True)

        await retry_attempts(attempt, Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S))

    async def _translate_errors(self, work: Callable[[], Awaitable[T]]) -> T:
        with translate_misreads(self.location):
            return await self._translate_service_errors(work)

    async def _translate_service_errors(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except ClientError as e:
            error = e.response.get("Error", {})
            refused = MessageRefused(str(error.get("Code", "")), str(error.get("Message", "")))
            status = e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise self._to_tailer_error(refused, passing=status >= 500) from e
        except (HTTPClientError, NotConnected, OSError, TimeoutError) as e:
            if is_distrusted(e):
                raise ConfigError(
                    f"{self.location}: {' '.join(str(e).split())}; name the authorities to trust "
                    "in the variable AWS_CA_BUNDLE"
                ) from e
            what = f"{self.location}: {' '.join(str(e).split())}"
            address = "endpoint_url and the region"
            raise (explain_unreached(what, e, address) or TransientError(what)) from e
        except NoAnswer as e:
            raise TransientError(f"{self.location}: {e}") from e
        except KeyError as e:
            raise TransientError(f"{self.location}: its answer lacks {e}") from e
        except BotoCoreError as e:  # no credentials, region or profile
            remedy = _REMEDIES.get(type(e).__name__, "")
            raise ConfigError(f"{self.location}: {' '.join(str(e).split())}{remedy}") from e

    def _to_tailer_error(
        self, refused: MessageRefused, *, passing: bool = False, named: bool = False
    ) -> TailerError:
        """Return the error of a request, or, ``named``, of a message."""
        what = f"{self.location}: {' '.join(str(refused).split())}"
        verdict = "passing" if passing else self.faults.verdict(refused.code)
        if verdict == "for good":
            account = "; check the account and its permissions"
            return ConfigError(f"{what}{account if _ACCOUNT.search(refused.code) else ''}")
        if named and verdict == "unclear":
            return RowsRefused(what)
        return TransientError(what) if passing else self.faults.error(refused.code, what)

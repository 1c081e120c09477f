"""A JetStream stream: each event as a message of a JetStream stream, exactly once.

Each message says which one must be the stream's last: the first of a request by its sequence
number and its id, the others by the id of their predecessor. So messages are stored one after the
other, by one process at a time, or not at all; and the answer to the last one is an answer for all
of them.
(With sequence numbers alone, a message of somebody else could take the place of one that was
refused, and those after it would be stored.) The offset after a piece is in a key-value bucket,
with the stream's sequence there. What a crash left between the two is found by its event ids, and
not sent again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from sinks.formats.json_formats import keyed_settings
from sinks.messages.messages import Messages, RequestLimits
from sinks.messages.sink import MessageSink
from sinks.messages.tls import find_ca_file, is_distrusted, make_tls_context
from sinks.nats.progress import StreamProgress
from sinks.shared.misread import translate_misreads
from sinks.shared.options import find_credentials, naming_extra
from sinks.shared.routes import Route
from tailer.changes import Offset
from tailer.errors import (
    ConfigError,
    OffsetError,
    RowsRefused,
    SinkRejected,
    TailerError,
    TransientError,
)
from tailer.network.reach import explain_unreached
from tailer.secrets.urls import Url
from tailer.settings import Setting
from tailer.sink import FaultTable

T = TypeVar("T")

#: The key-value bucket of the offsets.
_BUCKET = "delta-tailer"
#: What the server takes before it has stored the first of them.
_IN_FLIGHT = 500
_IN_FLIGHT_BYTES = 4 * 1024**2
#: Room for the headers, which count as part of a message.
HEADERS_BYTES = 512
#: What NATS takes as a stream, whose name is also a key of the bucket, and as a subject.
_STREAM = re.compile(r"[-_=a-zA-Z0-9]+")
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_NOT_IN_SUBJECTS = re.compile(r"[\s.*>\x00-\x1f]+")
#: The server's codes for a message that does not follow the last one: by its id, by its number.
NOT_IN_TURN = (10070, 10071)
#: By the server's code. What is not here passes: the stream, the disk or the account is full, a
#: cluster has no leader.
_FAULTS = FaultTable(
    # No JetStream for the account; a stream that is missing, another one, sealed, or can't be made.
    for_good="10003 10025 10035 10039 10048 10052 10056 10058 10059 10060 10065 10074 10076 10097 "
    "10109 10110",
    rows="10054",
)


class NatsStream(MessageSink):
    """Events as messages of a JetStream stream, exactly once."""

    faults = _FAULTS
    kind = "nats"
    places: ClassVar[tuple[str, ...]] = ("stream", "subject")
    routed: ClassVar[tuple[str, re.Pattern[str]] | None] = ("subject", _NOT_IN_SUBJECTS)
    keeps_offset = True
    piece_rows = 5000

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        return keyed_settings(format)

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        super().__init__(options["format"], self._format_options(options))
        with naming_extra("nats", "nats-py"):
            import nats

            from sinks.nats import client
        self._nats: Any = nats
        self._client_module: Any = client
        self.given = options
        self._servers: list[Url] = options["servers"]
        first = self._servers[0]
        user, password = find_credentials("nats", "servers", options, first.user, first.password)
        file = options["credentials_file"]
        self._login = client.Login(user, password, str(folder / file) if file else None)
        self._ca = find_ca_file(options, folder)
        self._location = f"NATS at {','.join(url.host_port(client.PORT) for url in self._servers)}"
        self._client: Any = None
        self._jetstream: Any = None
        self._bucket: Any = None
        self._server_error: Exception | None = None  # by the server, beside the answers
        self._revision = 0
        self._progress = StreamProgress("", 0, None, 0)
        self._sequence = 0
        self._last_id: str | None = None  # of the stream's last message, if it has one
        self._stored_ids: pa.StringArray | None = None
        self._headers: dict[str, str] = {}  # of each message, besides those that order them

    @property
    def _stream(self) -> str:
        return self._fill_name("stream", _STREAM, "letters, digits, - and _")

    @property
    def _subject(self) -> str:
        return self._fill_name("subject", _SUBJECT, "words of any characters but blanks, * and >")

    def _make_route(self, option: str) -> Route:
        return Route(self.fill_option(option), option, (), _NOT_IN_SUBJECTS)

    def _fill_name(self, option: str, form: re.Pattern[str], allowed: str) -> str:
        """Return an option with the feed's name in it. Raises :class:`ConfigError` for a name that
        NATS does not take."""
        route = self._make_route(option) if self.routed and option == self.routed[0] else None
        name = route.mask_columns("c") if route else self.fill_option(option)
        if not form.fullmatch(name):
            raise ConfigError(
                f"option {option!r} of sink 'nats': {name!r} can't be a {option}, which has "
                f"{allowed}; name another (for a table that a pattern finds, with {{table}})"
            )
        return name

    # Connections

    async def _connect(self) -> Offset | None:
        return await self._translate_errors(self._claim_stream)

    async def _look_at_target(self) -> Offset | None:
        async def look() -> Offset | None:
            await self._log_in()
            with suppress(self._nats.js.errors.NotFoundError):
                progress = await self._find_progress()
                return progress.offset if progress else None
            if self.given["create"]:
                return None
            raise self._make_missing_error()

        return await self._translate_errors(look)

    async def _log_in(self) -> None:
        _ = self._stream, self._subject  # a name that can't be is refused before anything else
        context = make_tls_context("nats", self._ca)

        async def note(e: Exception) -> None:
            self._server_error = e

        self._server_error = None
        self._client = self._client_module.new_client(self._servers)
        await self._client_module.connect_client(
            self._client, self._servers, self._login,
            tls=context, timeout_s=self.given["timeout_s"], note=note,
        )  # fmt: skip
        self._server_error = None  # by servers that were passed over
        self._jetstream = self._client.jetstream(timeout=self.given["timeout_s"])

    async def _disconnect(self) -> None:
        client, self._client, self._bucket = self._client, None, None
        if client is not None:
            await self._client_module.close_client(client)

    async def _claim_stream(self) -> Offset | None:
        """Claim the stream for this process, and find what it has after the offset."""
        await self._log_in()
        progress = None
        with suppress(self._nats.js.errors.NotFoundError):  # there is no bucket
            progress = await self._find_progress()
        written = self.written_before or bool(progress and progress.sequence)
        await self._create_missing(written=written)
        last, made = await self._find_last_sequence(), await self._find_creation_time()
        claimed = progress or StreamProgress(self._feed, 0, None, last)
        if last < claimed.sequence or claimed.made not in (None, made):
            raise ConfigError(
                f"{self._location}: the stream {self._stream} was made again since the feed wrote "
                "it; set where the feed resumes with `tailer offsets set` or `reset`"
            )
        self._progress = replace(claimed, epoch=claimed.epoch + 1, made=made)
        await self._begin_claim(claimed, last)
        self._stored_ids = await self._find_written_ids()
        last_ids = await self._find_ids(max(1, self._sequence), self._sequence)
        self._last_id = None if last_ids is None else last_ids[-1].as_py()
        return claimed.offset

    async def _begin_claim(self, claimed: StreamProgress, last: int) -> None:  # noqa: ARG002  # a copy's
        """Store the claim, before which the stream was as this progress says.

        Our first message has to follow what was the ``last`` one before. A later one may be of a
        newer process: of one that has claimed the stream while this one was paused here.
        """
        await self._save_progress(self._progress)
        self._sequence = last

    async def _create_missing(self, *, written: bool = False) -> None:
        """Make stream and bucket, if they are missing; not the stream that was ``written``."""
        errors, api = self._nats.js.errors, self._nats.js.api
        create = self.given["create"]
        try:
            if (await self._jetstream.stream_info(self._stream)).config.no_ack:
                raise ConfigError(
                    f"{self._location}: the stream {self._stream} acknowledges no message, so "
                    "nobody knows which of them are stored; set no_ack to false"
                )
        except errors.NotFoundError:
            if written:
                raise ConfigError(
                    f"{self._location}: the stream {self._stream} is missing, and the feed has "
                    "written to it; restore it, or set with `tailer offsets set` or `reset` "
                    "where the feed resumes"
                ) from None
            if not create:
                raise self._make_missing_error() from None
            await self._create_stream()
        try:
            self._bucket = await self._jetstream.key_value(_BUCKET)
        except errors.NotFoundError:
            if not create:
                raise self._make_missing_error() from None
            config = api.KeyValueConfig(bucket=_BUCKET)
            self._bucket = await self._jetstream.create_key_value(config)

    async def _create_stream(self) -> None:
        subject = self._make_route("subject").mask_columns("*")
        config = self._nats.js.api.StreamConfig(self._stream, subjects=[subject])
        await self._jetstream.add_stream(config)

    def _make_missing_error(self) -> ConfigError:
        return ConfigError(
            f"{self._location}: there is no stream {self._stream} or no bucket "
            f"{_BUCKET}, and create is false; make them"
        )

    async def _find_progress(self) -> StreamProgress | None:
        """Return what the bucket says. Raises ``NotFoundError`` if there is no bucket."""
        errors = self._nats.js.errors
        if self._bucket is None:
            self._bucket = await self._jetstream.key_value(_BUCKET)
        self._revision = 0
        try:
            entry = await self._bucket.get(self._stream)
        except (errors.KeyDeletedError, errors.KeyNotFoundError) as e:
            deleted = getattr(e, "entry", None)
            self._revision = deleted.revision if deleted is not None else 0
            return None
        self._revision = entry.revision
        try:
            progress = StreamProgress.from_bytes(entry.value)
        except (ValueError, KeyError, TypeError, OffsetError) as e:
            raise ConfigError(
                f"{self._location}: the entry {self._stream} of the bucket {_BUCKET} is "
                f"damaged ({e}); delete it, and set the offset with `tailer offsets set`"
            ) from e
        if progress.feed != self._feed:
            raise ConfigError(
                f"{self._location}: the stream {self._stream} is written by the feed "
                f"{progress.feed!r}; name another in the option {self.places[0]!r}"
            )
        return progress

    async def _find_state(self) -> Any:
        """Return the first and the last sequence number, and how many messages there are."""
        return (await self._jetstream.stream_info(self._stream)).state

    async def _find_last_sequence(self) -> int:
        return int((await self._find_state()).last_seq)

    async def _find_creation_time(self) -> str | None:
        """Return when the stream was made; None if the client does not say it."""
        made = getattr(await self._jetstream.stream_info(self._stream), "created", None)
        return None if made is None else str(made.isoformat())

    async def _find_ids(self, first: int, last: int) -> pa.StringArray | None:
        """Return the event ids of the messages that are there of a piece."""
        ids = []
        for sequence in range(first, last + 1):
            with suppress(self._nats.js.errors.NotFoundError):  # a reader has removed it
                message = await self._jetstream.get_msg(self._stream, sequence)
                ids.append((message.headers or {}).get("Nats-Msg-Id"))
        return pa.array(ids, pa.string()) if ids else None

    async def _find_written_ids(self) -> pa.StringArray | None:
        """Return the event ids of the messages that it has after the offset."""
        return await self._find_ids(self._progress.sequence + 1, await self._find_last_sequence())

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset; the messages stay."""
        self._feed = feed

        async def move() -> None:
            await self._log_in()
            await self._create_missing()
            progress = await self._find_progress()
            before = progress or StreamProgress(feed, 0, None, 0)
            last, made = await self._find_last_sequence(), await self._find_creation_time()
            # Rows are counted from here on: what comes again was there.
            moved = replace(before, offset=offset, sequence=last, made=made, rows=0)
            await self._save_progress(replace(moved, epoch=before.epoch + 1))

        try:
            await self._translate_errors(move)
        finally:
            await self._disconnect()

    # Messages

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        if self._stored_ids is not None:
            left = messages.without_ids(self._stored_ids)
            if len(left) == len(messages):
                self._stored_ids = None
            messages = left
        try:
            await self._send_requests(messages)
        except SinkRejected:
            # The feed may send the others of this piece again: not those that are there.
            self._stored_ids = await self._translate_errors(self._find_written_ids)
            raise
        await self._save_offset(then)

    def _find_limits(self) -> RequestLimits:
        return RequestLimits(
            _IN_FLIGHT, max(_IN_FLIGHT_BYTES, self._client.max_payload),
            message_bytes=self._client.max_payload - HEADERS_BYTES,
            remedy="increase max_payload of the server, ",
        )  # fmt: skip

    async def _send_requests(self, messages: Messages) -> None:
        for part in messages.split_into_requests(self._find_limits()):
            await self._translate_errors(partial(self._publish_in_turn, part))

    async def _publish_in_turn(self, messages: Messages) -> None:
        """Publish messages, each after its predecessor."""
        while len(messages):
            try:
                self._sequence = await self._publish_messages(messages)
            except self._nats.js.errors.APIError as e:
                if e.err_code not in NOT_IN_TURN and len(messages) == 1:
                    raise
                messages = await self._resend_refused(messages)
            else:
                return

    async def _publish_messages(self, messages: Messages) -> int:
        """Publish messages; return the stream's last sequence."""
        subjects, values = messages.list_places(self._subject), messages.values
        ids = messages.ids.to_pylist()
        count = len(ids)
        for place, value in enumerate(values.to_pylist()):
            headers = {"Nats-Msg-Id": ids[place], "Nats-Expected-Stream": self._stream}
            headers |= self._headers
            before = ids[place - 1] if place else self._last_id
            if before is not None:
                headers["Nats-Expected-Last-Msg-Id"] = before
            if not value:
                headers["KV-Operation"] = "DEL"  # a copy's
            if not place:
                headers["Nats-Expected-Last-Sequence"] = str(self._sequence)
            if place < count - 1:
                await self._client.publish(subjects[place], value, headers=headers)
            else:
                answer = await self._jetstream.publish(subjects[place], value, headers=headers)
        # Repeated messages are there already, unless they were removed since.
        sequence: int = await self._check_stored(answer.seq) if answer.duplicate else answer.seq
        self._last_id = ids[-1] if sequence == answer.seq else None
        return sequence

    async def _resend_refused(self, messages: Messages) -> Messages:
        """Return what is left of messages of which one was refused, so that those after it were
        not in turn.

        Only the last one has an answer, so the refused one is sent again, by itself, for its own: a
        stream that is full, for example, or somebody else's message in its place.
        """
        last = await self._find_last_sequence()
        count = last - self._sequence
        if count < 0 or (
            count and (count >= len(messages) or not await self._has_last(last, messages, count))
        ):
            raise await self._find_interruption()
        self._sequence = last
        if count:
            self._last_id = messages.ids[count - 1].as_py()
        self._sequence = await self._publish_messages(messages.slice(count, count + 1))
        return messages.slice(count + 1, len(messages))

    async def _has_last(self, sequence: int, messages: Messages, count: int) -> bool:
        """Return whether the stream has ``count`` of these messages, up to a sequence number: if it
        has the last of them there, the others are before it."""
        ids = await self._find_ids(sequence, sequence)
        return ids is not None and ids[0].equals(messages.ids[count - 1])

    async def _check_stored(self, sequence: int) -> int:
        """Return the stream's last sequence, if the message with this one is there."""
        try:
            await self._jetstream.get_msg(self._stream, sequence)
        except self._nats.js.errors.NotFoundError:
            raise self._make_turn_error() from None
        return await self._find_last_sequence()

    async def _save_offset(self, then: Offset) -> None:
        moved = replace(self._progress, offset=then, sequence=self._sequence)
        await self._translate_errors(lambda: self._save_progress(moved))
        self._progress = moved

    async def _save_progress(self, progress: StreamProgress) -> None:
        """Store the progress, if nobody else has since it was read."""
        value = progress.to_bytes()
        self._revision = await self._bucket.update(self._stream, value, last=self._revision)

    # Errors

    async def _translate_errors(self, work: Callable[[], Awaitable[T]]) -> T:
        with translate_misreads(self._location):
            try:
                return await work()
            except (self._nats.errors.Error, OSError) as e:
                raise await self._to_tailer_error(e) from e

    async def _to_tailer_error(self, e: Exception) -> TailerError:
        errors, js = self._nats.errors, self._nats.js.errors
        said = self._server_error or e
        what = f"{self._location}: {' '.join(str(said).split()) or type(said).__name__}"
        if any(word in str(said).lower() for word in ("authorization", "permissions")):
            return ConfigError(f"{what}; check the account in the options of the sink")
        if is_distrusted(said):
            return ConfigError(f"{what}; see the option 'ca_file' of sink 'nats'")
        if no_way := explain_unreached(self._location, said, "the option 'servers'"):
            return no_way
        if isinstance(e, self._client_module.NoTls):
            return ConfigError(f"{what}; let the server require it, or write nats:// where the "
                               "network is trusted")  # fmt: skip
        code = getattr(e, "err_code", None)
        if isinstance(e, js.KeyWrongLastSequenceError | js.NoStreamResponseError) or (
            code in NOT_IN_TURN
        ):
            return await self._find_interruption(e)
        if isinstance(e, errors.MaxPayloadError):
            return RowsRefused(what)
        if isinstance(e, errors.BadSubjectError) or self.faults.verdict(code or "") == "for good":
            return ConfigError(what)
        return self.faults.error(code or "", what)

    async def _find_interruption(self, e: Exception | None = None) -> TailerError:
        """Return the error of a message, or of an offset, that does not follow the last one, or
        that no stream takes."""
        js = self._nats.js.errors
        with suppress(self._nats.errors.Error, OSError):
            revision, progress = self._revision, None
            with suppress(js.NotFoundError):
                progress = await self._find_progress()
            if progress is None:
                return self._make_lost_error("the offset is gone from the bucket")
            if progress.epoch > self._progress.epoch:
                return ConfigError(
                    f"{self._location}: another process writes the stream {self._stream} now; stop "
                    "one of them"
                )
            if self._revision != revision:
                return self._make_lost_error("the bucket has another offset than was written last")
            if await self._find_creation_time() != self._progress.made:
                return self._make_lost_error("it was made again")
        if isinstance(e, js.NoStreamResponseError):
            return ConfigError(
                f"{self._location}: no stream takes the subject {self._subject}; add it to the "
                f"stream {self._stream}, or change the option {self.places[-1]!r}"
            )
        return self._make_turn_error()

    def _make_lost_error(self, what: str) -> TransientError:
        return TransientError(
            f"{self._location}: the stream {self._stream} is not as this feed has left it: {what}; "
            "the feed restarts from the state found there"
        )

    def _make_turn_error(self) -> TransientError:
        return TransientError(
            f"{self._location}: somebody else publishes to the stream {self._stream}, or it has "
            "these messages already and takes them again when its duplicate window is over"
        )

"""A copy of a table in a key-value bucket: an entry of JSON for each key, exact in the end.

A bucket is a stream, whose messages are entries, or markers of those that were removed. They are
stored as the events of a stream are, one after the other by one process at a time; and the offset
is in the other bucket. A bucket keeps the last message of a key alone, so what a crash has left
there can't be listed: it is sent again. Each message says the offset after its batch, and until the
saved offset has reached it, nobody knows whether the key should be there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sinks.messages.json_mirror import JsonMirror
from sinks.messages.messages import Messages, RequestLimits, parse_limit
from sinks.nats.progress import StreamProgress
from sinks.nats.stream import HEADERS_BYTES, NOT_IN_TURN, NatsStream
from sinks.shared.json_copy import add_columns
from sinks.shared.key_ids import hash_long_texts
from tailer.changes import METADATA_FIELDS, Offset
from tailer.errors import ConfigError, TargetRefused, TransientError

#: The bucket of the offsets is none for rows.
_BUCKET = re.compile(r"(?!delta-tailer$)[-_a-zA-Z0-9]+")
#: What a part of a key can't have: a dot divides it, and = marks the bytes of these.
_ODD = r"[^-/_a-zA-Z0-9]"
#: What a key begins with that is a hash. A part's hash has one such mark.
_HASHED = "=7E=7E"
#: A server reads a subject as part of a line of 4 KiB.
_KEY_BYTES_MAX = 1024
#: The key of the marker that a claim stores. No row has it.
_FENCE = "=fence"
#: Which header has the offset, and how: version and index. Messages of others have none.
_OFFSET, _POSITION = "Tailer-Offset", re.compile(r"(\d{1,19})\.(\d{1,19})")
#: The status of a direct look-up that finds nothing.
_NOT_FOUND = "404"
#: What answers on their way have at most.
_ANSWER_BYTES = 64 * 1024**2
#: How long a feed may take between its rows and their offset, in seconds.
_SETTLE_S = 5.0


class NatsMirror(JsonMirror, NatsStream):
    """A copy of a table by key."""

    places = ("bucket",)
    routed = None

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        key = self._find_key(options)
        super().__init__(options, folder)
        self._set_key(key)
        self._lacks_beginning = False
        # The server drops what has the id of a message before it, and a replay is no repetition.
        self._run, self._sent = uuid.uuid4().hex, 0
        self._stream_bytes: int | None = None  # what its messages have at most

    @property
    def lacks_beginning(self) -> bool:  # type: ignore[override]
        """Whether a copy has just begun."""
        return self._lacks_beginning

    @property
    def _stream(self) -> str:
        allowed = "letters, digits, - and _, and is not the one of the offsets"
        return f"KV_{self._fill_name('bucket', _BUCKET, allowed)}"

    @property
    def _subject(self) -> str:
        return f"$KV.{self.fill_option('bucket')}"

    def name_keys(
        self, keys: pa.Table, find_ids: Callable[[pa.Table], pa.StringArray]
    ) -> pa.StringArray:
        """Return the parts of each key, with dots between them, so that readers watch some."""
        parts = [_escape_texts(find_ids(keys.select([name]))) for name in keys.column_names]
        return hash_long_texts(pc.binary_join_element_wise(*parts, "."), _KEY_BYTES_MAX, _HASHED)

    # The claim

    async def _create_stream(self) -> None:
        config = self._nats.js.api.KeyValueConfig(self.fill_option("bucket"), direct=True)
        await self._jetstream.create_key_value(config)

    async def _begin_claim(self, claimed: StreamProgress, last: int) -> None:
        begins, fenced = claimed.offset is None, False
        self._lacks_beginning = begins and claimed.columns is None
        self._progress = replace(self._progress, columns=claimed.columns or {})
        while not fenced:
            info = await self._jetstream.stream_info(self._stream)
            self._check_config(info.config)
            await self._check_entries(claimed, info.state)
            # If this is stored, nobody else has claimed the copy since it was read.
            await super()._begin_claim(claimed, last)
            fenced = await self._fence_bucket(info.state.last_seq, clear=begins)

    def _check_config(self, config: Any) -> None:
        limited = config.discard == "old" and max(config.max_msgs or 0, config.max_bytes or 0) > 0
        wrong = {
            "set max_age to 0": config.max_age,
            "set allow_direct to true": not config.allow_direct,
            "set discard to new, or neither max_msgs nor max_bytes": limited,
            "set retention to limits": config.retention != "limits",
            "let it be no mirror": config.mirror,
            "let it have no sources": config.sources,
        }
        if remedies := [remedy for remedy, is_wrong in wrong.items() if is_wrong]:
            raise ConfigError(
                f"{self._location}: the stream {self._stream} can't hold a copy, which has all "
                f"rows, looks them up directly, and is written by one feed; {'; '.join(remedies)}"
            )
        self._stream_bytes = parse_limit(config.max_msg_size, self._client.max_payload)

    async def _check_entries(self, claimed: StreamProgress, state: Any) -> None:
        """Raise :class:`TargetRefused` if there is less than the rows; or, where a copy begins,
        more than what the feed itself has left."""
        if claimed.offset is not None:
            if state.messages < claimed.rows:
                raise TargetRefused(
                    f"{self._location}: the stream {self._stream} has lost entries (there are "
                    f"{state.messages} at most, for {claimed.rows} rows); `tailer verify --repair` "
                    "writes those that are missing, `tailer offsets reset` creates the copy again"
                )
        elif state.messages and (claimed.columns is None or not await self._has_own_alone(state)):
            raise self._make_occupied_error(own=claimed.epoch > 0)

    async def _has_own_alone(self, state: Any) -> bool:
        async for messages in self._read_entries(state, headers_only=True):
            if any(_OFFSET not in (message.headers or {}) for message in messages):
                return False
        return True

    async def _fence_bucket(self, last: int, *, clear: bool) -> bool:
        """Store a marker after the ``last`` message, if that is the last one still; return whether
        it was. So the server refuses what an older process sends, whose next message should follow
        the last one; and whoever was paused here can't get behind a newer one. ``clear`` the bucket
        up to there."""
        if clear and last:  # a bucket that is full has no room for the marker
            await self._jetstream.purge_stream(self._stream, seq=last + 1)
        fence = f"{self._subject}.{_FENCE}"
        headers = {"KV-Operation": "DEL", _OFFSET: "", "Nats-Expected-Last-Sequence": str(last)}
        try:
            answer = await self._jetstream.publish(fence, b"", headers=headers)
        except self._nats.js.errors.APIError as e:
            if e.err_code not in NOT_IN_TURN:
                raise
            await self._save_progress(self._progress)  # or somebody else has claimed the copy
            return False
        self._sequence = answer.seq
        # Of a copy that goes on, the marker stays: up to NATS 2.9, a watcher loses what it has not
        # received yet when a subject is purged.
        if clear:
            await self._jetstream.purge_stream(self._stream, seq=answer.seq + 1)
        return True

    def _make_occupied_error(self, *, own: bool) -> TargetRefused:
        more = " (`tailer offsets reset` removes all that is there)" if own else ""
        return TargetRefused(
            f"{self._location}: the stream {self._stream} has entries already, and a copy begins "
            f"empty; empty it{more}, or name another in the option 'bucket'"
        )

    async def _find_written_ids(self) -> None:
        """Return none: what is there after the offset is sent again."""

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset. None removes the rows, which belong to it."""
        self._feed = feed
        try:
            if offset is None:
                await self._translate_errors(self._reset)
            elif await self.find_offset() is None and offset.position > (0, 0):
                raise TargetRefused(
                    f"{self._location}: the stream {self._stream} is no copy yet, and a copy can't "
                    f"start at version {offset.version}; start over with `tailer offsets reset`"
                )
        finally:
            await self._disconnect()
        if offset is not None:
            await super().set_offset(feed, offset)

    async def _reset(self) -> None:
        await self._log_in()
        await self._create_missing()
        progress, fenced = await self._find_progress(), False
        epoch, made = progress.epoch + 1 if progress else 1, await self._find_creation_time()
        while not fenced:
            state = await self._find_state()
            if progress is None and state.messages:
                raise self._make_occupied_error(own=False)
            # If this is interrupted, there are entries left, and no copy begins there.
            self._progress = StreamProgress(self._feed, epoch, None, state.last_seq, made)
            await self._save_progress(self._progress)
            fenced = await self._fence_bucket(state.last_seq, clear=True)

    # Writing

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        messages.check_sizes(self._find_limits())
        batch, before = messages.batch, self._progress
        state = await self._translate_errors(self._find_state)
        if state.messages < before.rows:
            raise self._make_lost_error("it has lost entries")
        schema = pa.schema(list(batch.rows.schema)[: -len(METADATA_FIELDS)])
        where = f"{self._location}: the stream {self._stream}"
        columns = add_columns(batch, schema, before.columns or {}, where)
        rows = before.rows
        if not self._replaces_rows(batch):
            await self._check_keys(messages)
            rows += _count_new_rows(messages)
        await self._send_entries(messages, then)
        self._progress = replace(before, columns=columns, rows=rows)
        await self._save_offset(then)

    def _find_limits(self) -> RequestLimits:
        found = super()._find_limits()
        most = min(self._client.max_payload, self._stream_bytes or self._client.max_payload)
        remedy = "increase max_payload of the server, or max_msg_size of the stream, "
        return replace(found, message_bytes=max(0, most - HEADERS_BYTES), remedy=remedy)

    async def _send_entries(self, messages: Messages, then: Offset | None) -> None:
        """Send messages whose ids are the names of keys, and which the offset ``then`` follows."""
        version, index = then.position if then else (0, 0)
        self._headers = {_OFFSET: f"{version}.{index}"}
        first, self._sent = self._sent, self._sent + len(messages)
        ids = pa.array([f"{self._run}-{n}" for n in range(first, self._sent)], pa.string())
        places = pc.binary_join_element_wise(f"{self._subject}.", messages.ids, "")
        await self._send_requests(replace(messages, ids=ids, places=places))

    async def _check_keys(self, messages: Messages) -> None:
        """Raise :class:`SinkRejected` for a key that comes and is there, or the reverse."""
        assert messages.keys is not None, "a copy's messages have them"
        names, expected = messages.ids.to_pylist(), messages.keys.to_pylist()
        step = self._find_answers_max()
        for first in range(0, len(names), step):
            some = names[first : first + step]
            found = await self._translate_errors(partial(self._ask_last_headers, some))
            for name, headers, before in zip(some, found, expected[first:], strict=False):
                if self._is_expected(headers, before):
                    continue
                # A server of a cluster that answers may know less than the one that stores.
                headers = await self._translate_errors(partial(self._find_last_headers, name))  # noqa: PLW2901
                if not self._is_expected(headers, before):
                    raise self._make_key_error(self._location, name, there=before == b"-")

    def _is_expected(self, headers: Mapping[str, str], before: bytes) -> bool:
        """Return whether a key is there (+) or not (-), or is one that a crash has left. A server
        that could not look has not said so."""
        if headers.get("Status", _NOT_FOUND) != _NOT_FOUND:
            return False
        there = bool(headers) and "Status" not in headers and not _is_marker(headers)
        return there == (before == b"+") or self._is_ahead(headers)

    def _is_ahead(self, headers: Mapping[str, str]) -> bool:
        """Return whether the feed has written a message and will do so again: the saved offset is
        before the one after its batch."""
        position, at = _POSITION.fullmatch(headers.get(_OFFSET, "")), self._progress.offset
        if position is None or at is None:
            return position is not None
        return (int(position[1]), int(position[2])) > at.position

    async def _ask_last_headers(self, names: Sequence[str]) -> list[Mapping[str, str]]:
        """Return the headers of the last message of each key, none if there is none; of all of them
        at the same time."""
        inbox, all_there = self._client.new_inbox(), anyio.Event()
        found: dict[str, Mapping[str, str]] = {}

        async def note(answer: Any) -> None:
            found[answer.subject] = answer.headers or {}
            if len(found) == len(names):
                all_there.set()

        answers = await self._client.subscribe(f"{inbox}.*", cb=note)
        try:
            for place, name in enumerate(names):
                subject = f"$JS.API.DIRECT.GET.{self._stream}.{self._subject}.{name}"
                await self._client.publish(subject, b"", reply=f"{inbox}.{place}")
            with anyio.fail_after(self.given["timeout_s"]):
                await all_there.wait()
        finally:
            await answers.unsubscribe()
        return [found[f"{inbox}.{place}"] for place in range(len(names))]

    async def _find_last_headers(self, name: str) -> Mapping[str, str]:
        """Return the same of one key, as the server says that stores it."""
        with suppress(self._nats.js.errors.NotFoundError):
            subject = f"{self._subject}.{name}"
            message = await self._jetstream.get_last_msg(self._stream, subject)
            return {**(message.headers or {}), "Nats-Sequence": str(message.seq)}
        return {}

    def _find_answers_max(self) -> int:
        return max(1, _ANSWER_BYTES // int(self._client.max_payload))

    async def write_rows(
        self, names: pa.StringArray, values: pa.StringArray, expected: Offset | None
    ) -> bool:
        before, last = self._progress, self._sequence
        progress = await self._translate_errors(self._find_progress)
        now = (await self._translate_errors(self._find_state)).last_seq
        if progress != before or before.offset != expected or now != last:
            return False
        batch: Any = None
        versions = pa.nulls(len(names), pa.int64())
        messages = Messages(batch, values.cast(pa.binary()), names, versions, "")
        await self._send_entries(messages, before.offset)
        if before.offset is not None:
            await self._save_offset(before.offset)
        return True

    # Reading

    async def find_offset(self) -> Offset | None:
        async def look() -> Offset | None:
            await self._log_in()
            self._progress, self._last_id = StreamProgress(self._feed, 0, None, 0), None
            with suppress(self._nats.js.errors.NotFoundError):
                self._progress = await self._find_progress() or self._progress
                self._sequence = await self._find_last_sequence()
            return self._progress.offset

        await self._disconnect()
        return await self._translate_errors(look)

    async def scan_rows(self) -> AsyncGenerator[dict[str, dict[str, msgspec.Raw]], None]:
        """Yield the rows by their keys. Raises :class:`TransientError` if the feed writes
        meanwhile."""
        state, is_ahead = await self._translate_errors(self._find_state), False
        async for messages in self._read_entries(state):
            await self._check_unchanged(state.last_seq)
            is_ahead |= any(self._is_ahead(message.headers or {}) for message in messages)
            entries = [each for each in messages if not _is_marker(each.headers or {})]
            names = [each.subject.removeprefix(f"{self._subject}.") for each in entries]
            yield self._keep_rows(names, [each.data for each in entries])
        # Entries are there before their offset. A feed that has stopped there has left a part of a
        # version, which differs from the table.
        give_up = anyio.current_time() + _SETTLE_S
        while anyio.current_time() < give_up:
            await self._check_unchanged(state.last_seq)
            if not is_ahead:
                return
            await anyio.sleep(_SETTLE_S / 10)

    async def _read_entries(
        self, state: Any, *, headers_only: bool = False
    ) -> AsyncGenerator[Sequence[Any], None]:
        """Yield the last messages of all keys, in pages. A state tells whether there are any."""
        subscribe = partial(self._subscribe_to_entries, headers_only=headers_only)
        left = state.messages
        reader = await self._translate_errors(subscribe) if left else None
        while left and reader is not None:
            page = partial(reader.fetch, self._find_answers_max(), self.given["timeout_s"])
            messages = await self._translate_errors(page)
            left = messages[-1].metadata.num_pending
            yield messages

    async def _subscribe_to_entries(self, *, headers_only: bool) -> Any:
        api = self._nats.js.api
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT, ack_policy=api.AckPolicy.NONE,
            inactive_threshold=2 * self.given["timeout_s"], mem_storage=True,
            headers_only=headers_only,
        )  # fmt: skip
        subject = f"{self._subject}.>"
        return await self._jetstream.pull_subscribe(subject, stream=self._stream, config=config)

    async def _check_unchanged(self, last: int) -> None:
        """Raise :class:`TransientError` if the feed has written since the offset was read."""
        state = await self._translate_errors(self._find_state)
        progress = await self._translate_errors(self._find_progress)
        if state.last_seq != last or progress != self._progress:
            raise TransientError("the feed has written the copy meanwhile; verify it again")


def _count_new_rows(messages: Messages) -> int:
    """Return how many more rows there are after messages than before."""
    there = pc.sum(pc.equal(messages.keys, b"+")).as_py() or 0
    stay = pc.sum(pc.greater(pc.binary_length(messages.values), 0)).as_py() or 0
    return int(stay) - int(there)


def _is_marker(headers: Mapping[str, str]) -> bool:
    """Return whether a message says that there is no entry any more."""
    return "Nats-Marker-Reason" in headers or headers.get("KV-Operation") in ("DEL", "PURGE")


def _escape_texts(texts: pa.StringArray) -> pa.StringArray:
    odd = pc.match_substring_regex(texts, _ODD)
    if not pc.any(odd).as_py():
        return texts
    escaped = [re.sub(_ODD, _escape_bytes, text) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(texts, odd, pa.array(escaped, pa.string()))


def _escape_bytes(match: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in match[0].encode())

"""Several requests at the same time, in which the events of one key still follow one another.

Where no key of a piece comes twice, its requests overlap as they come. Else its messages are
divided into lanes by their keys: the requests of a lane follow one another, those of different
lanes overlap. Where a request takes one key alone, each key is a lane; where rows say where they
go, each place is. A request that fails keeps
others from beginning, and cuts none off whose outcome nobody would know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from sinks.messages.messages import Messages, RequestLimits
from tailer.settings import Setting

IN_FLIGHT = Setting(
    "whole", 8, "Requests at the same time. The events of one key follow one another; without "
    "`key`, all do.", most=64, advanced=True,
)  # fmt: skip


class _RequestLane:
    """The messages ``first`` to ``end`` (None: all), in requests; their sizes were checked.
    ``places`` are those of all in the piece (None: the same). There may be one for each row, so it
    is no more than numbers until it is its turn."""

    __slots__ = ("_begun", "_end", "_limits", "_messages", "_places", "_requests")

    def __init__(
        self,
        messages: Messages,
        limits: RequestLimits,
        places: pa.Array | None = None,
        *,
        first: int = 0,
        end: int | None = None,
    ) -> None:
        self._messages, self._limits, self._places = messages, limits, places
        self._begun, self._end = first, len(messages) if end is None else end
        self._requests: Iterator[Messages] | None = None

    def take(self) -> tuple[int, Messages] | None:
        """Return the next request and the place of its first message; None if there is none."""
        if (place := self.find_next()) is None:
            return None
        if self._requests is None:
            own = self._messages.slice(self._begun, self._end)
            self._requests = own.split_checked(self._limits)
        request = next(self._requests)
        self._begun += len(request)
        return place, request

    def find_next(self) -> int | None:
        """Return the place of the first message whose request has not begun, if there is one."""
        if self._begun == self._end:
            return None
        return self._begun if self._places is None else int(self._places[self._begun].as_py())


async def send_requests(
    messages: Messages,
    limits: RequestLimits,
    in_flight: int,
    send: Callable[[Messages], Awaitable[None]],
    note_taken: Callable[[int], None],
) -> None:
    """Send messages in requests, at most ``in_flight`` at the same time; ``note_taken`` gets the
    number of messages, from the first one on, that were taken. A request goes to one place
    alone, and those of a place follow one another.

    Raises the error of the first message whose request failed, when no request is on its way any
    more; before the first request, :class:`RowsRefused` for a message that is too large.
    """
    messages.check_sizes(limits)
    lanes = _divide(messages, limits, in_flight)
    waiting = iter(lanes)
    #: By the place of its first message, each request that is on its way or has failed.
    open_requests: dict[int, Exception | None] = {}

    async def work() -> None:
        for lane in waiting:
            while not any(open_requests.values()) and (found := lane.take()) is not None:
                place, request = found
                open_requests[place] = None
                try:
                    await send(request)
                except Exception as e:  # noqa: BLE001  # raised when nothing is on its way any more
                    open_requests[place] = e
                else:
                    del open_requests[place]

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(in_flight, len(lanes)) - 1):
                group.start_soon(work)
            await work()
    finally:
        left = [place for lane in lanes if (place := lane.find_next()) is not None]
        note_taken(min([*open_requests, *left], default=len(messages)))
    for place in sorted(open_requests):
        if (error := open_requests[place]) is not None:
            raise error


def _divide(messages: Messages, limits: RequestLimits, in_flight: int) -> list[_RequestLane]:
    """Return what the tasks send, one after the other: the same lane for each, if no key comes
    twice."""
    if messages.places is not None:
        coded = messages.places.dictionary_decode().dictionary_encode()
        return list(_divide_by_group(messages, limits, coded.indices))
    if messages.keys is None or (in_flight == 1 and not limits.one_key):
        return [_RequestLane(messages, limits)]
    keys = messages.keys.dictionary_encode("encode")
    if len(keys.dictionary) == len(messages):
        alone = replace(limits, messages=1) if limits.one_key else limits
        return [_RequestLane(messages, alone)] * in_flight
    if limits.one_key:
        return list(_divide_by_group(messages, limits, keys.indices))
    size = (pc.sum(pc.binary_length(messages.values)).as_py() or 0) + len(keys) * limits.overhead
    # No more than the messages fill requests.
    count = min(in_flight, max(-(-len(keys) // limits.messages), -(-size // limits.bytes)))
    if count == 1:
        return [_RequestLane(messages, limits)]
    numbers = keys.indices.cast(pa.int64())
    lane_of = pc.subtract(numbers, pc.multiply(pc.divide(numbers, count), count))
    divided = (pc.indices_nonzero(pc.equal(lane_of, lane)) for lane in range(count))
    return [
        _RequestLane(messages.take(places), limits, places) for places in divided if len(places)
    ]


def _divide_by_group(
    messages: Messages, limits: RequestLimits, numbers: pa.Array
) -> Iterator[_RequestLane]:
    """Yield the messages of each group, in the order of their first ones; ``numbers`` are the
    groups' numbers in that order."""
    places = pc.sort_indices(numbers)  # which leaves those of a group in their order
    grouped, first = messages.take(places), 0
    for count in pc.value_counts(numbers).field("counts").to_pylist():
        end = first + count
        yield _RequestLane(grouped, limits, places, first=first, end=end)
        first = end

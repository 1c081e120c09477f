"""How many messages are sent at once, where a queue has a bound and rejects what is beyond it.

With `x-overflow = reject-publish`, the usual way to slow a publisher down, messages that are on
their way when the queue is full are rejected, while those after them may be taken, if somebody has
read a message between. They would be in the wrong order. So no more are sent than the queue has
room for: its arguments say how many it takes, and a passive declaration how many it has. Where the
bound is not known (a policy, an exchange), it is learned from the first rejection; until then few
more are sent at once than the queue has had before, so that few can be out of order.
"""

from __future__ import annotations

import re
from typing import Any

from sinks.rabbitmq.channel import Channel

_PRECONDITION_FAILED = 406
#: How the broker names an argument that a queue has otherwise than it was declared.
_UNEQUAL = re.compile(
    r"inequivalent arg '([\w-]+)'.* but current is "
    r"(?:(none)|the value '(.*)' of type '\w+'|'(\w+)')"
)
_ARGUMENTS_MAX = 16
#: This many in a row are taken beyond the bound before the next ones are sent by twos, by fours ...
_IN_A_ROW = 64
#: Of a queue whose bound is not known, this many are sent beyond what it has had before, or this
#: share of that; after this many, as many as a request has.
_STEP, _SHARE, _PROVEN = 50, 8, 4000


class Pace:
    """How many messages may be sent at once. ``bound`` is how many messages the queue takes, and
    ``bytes_max`` how many bytes, None where that is not known."""

    def __init__(self, bound: int | None = None, bytes_max: int | None = None) -> None:
        self._bound = bound
        self._bytes_max = bytes_max
        self._known = self._careful = bound is not None or bytes_max is not None
        self._largest = 1
        self._in_a_row = 0
        self._proven = 0  # how many messages the queue has had, if no bound is known

    @property
    def needs_depth(self) -> bool:
        """Whether the next burst depends on how many messages the queue has."""
        return self._careful or self._proven < _PROVEN

    def find_burst(self, wanted: int, depth: int | None, largest: int) -> int:
        """Return how many of ``wanted`` messages may be sent now, the largest of ``largest`` bytes.
        ``depth`` is how many messages the queue has, None where that can't be asked."""
        if not self._careful:
            beyond = max(_STEP, self._proven // _SHARE)
            return min(wanted, max(beyond, self._proven - (depth or 0)))
        self._largest = max(self._largest, largest)
        if depth is not None:
            bounds = [] if self._bound is None else [self._bound]
            if self._bytes_max is not None:
                bounds.append(self._bytes_max // self._largest)
            room = min(bounds, default=0) - depth
            if room > 0:
                return min(wanted, room)
            if self._known and depth:
                return 0
        # Beyond the bound one message is tried: if it is rejected, none is out of order.
        return min(wanted, 1 << min(self._in_a_row // _IN_A_ROW, 16))

    def note_success(self, count: int, depth: int | None) -> None:
        """Note that all messages of a burst were taken."""
        if not self._careful:
            had = self._proven if depth is None else depth
            self._proven = max(self._proven, had + count)
        elif not self._known and (depth is None or depth + count > (self._bound or 0)):
            self._in_a_row += count
            self._bound = None if depth is None else depth + count

    def note_rejection(self, depth: int | None) -> None:
        """Note that a message was rejected while the queue has ``depth`` messages."""
        self._careful, self._known, self._bytes_max = True, False, None
        self._bound, self._in_a_row = depth, 0


async def find_pace(channel: Channel, queue: str, kind: str, errors: Any) -> Pace:
    """Return the pace of a queue that is there, by its arguments. ``errors`` are pika's.

    They are asked for in the only way that there is: a declaration with others is refused, and says
    in which one. One that is as we make it costs nothing.
    """
    arguments: dict[str, Any] = {"x-queue-type": kind}
    durable = True
    for _ in range(_ARGUMENTS_MAX):
        try:
            await channel.call("queue_declare", queue, durable=durable, arguments=arguments)
            break
        except errors.ChannelClosedByBroker as e:
            await channel.open_channel()
            found = _UNEQUAL.search(e.reply_text)
            if e.reply_code != _PRECONDITION_FAILED or found is None:
                break
            name, none, *values = found.groups()
            value = next(filter(None, values), "")
            if name == "durable":
                durable = value == "true"
            elif not name.startswith("x-") or (none and name not in arguments):
                break
            elif none:
                del arguments[name]
            else:
                arguments[name] = int(value) if value.isdecimal() else value
    if not str(arguments.get("x-overflow", "")).startswith("reject-publish"):
        return Pace()
    limits = (arguments.get(name) for name in ("x-max-length", "x-max-length-bytes"))
    bound, bytes_max = (limit if isinstance(limit, int) else None for limit in limits)
    return Pace(bound, bytes_max)

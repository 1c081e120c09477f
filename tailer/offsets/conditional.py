"""An object that is only written on condition that it is the one seen last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from tailer.errors import TransientError
from tailer.network.backoff import Backoff

#: Conditional writes refused in succession, for no reason that can be seen, before an error.
_REFUSED_MAX = 5
#: Longest pause between two of them, in seconds.
_REFUSED_PAUSE_MAX_S = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The object as it was seen, ``at`` seconds of :func:`steady_now`.

    ``document`` is None without an object; ``etag`` is the server's, whether it names one state of
    the object or not.
    """

    document: dict[str, Any] | None
    etag: str
    at: float

    @property
    def owner(self) -> dict[str, Any] | None:
        """The process that holds the object, if any."""
        return None if self.document is None else self.document.get("owner")

    @property
    def epoch(self) -> int:
        """The number of its owners so far."""
        return 0 if self.document is None else int(self.document["epoch"])


class ConditionalObject(Protocol):
    """One object of a server, by two requests. The methods raise :class:`TransientError` for what
    may heal and :class:`TableError` for what will not."""

    @property
    def path(self) -> str:
        """The object's address, for messages."""

    async def get(self) -> Seen:
        """Return the object, or that there is none."""

    async def put(self, body: bytes, etag: str | None) -> str | None:
        """Write the object on condition that it has this ETag; None: that there is no object.

        Returns the new ETag, empty if the answer has none that names a state; None if the
        condition was not met.
        """


class ConditionRefused(TransientError):
    """The server refuses the write of an object that nobody else writes."""


class Refusals:
    """Conditional writes that were refused in succession, each followed by a longer pause."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._backoff = Backoff(0.05, _REFUSED_PAUSE_MAX_S)
        self._count = 0
        self._last: Seen | None = None

    async def pause_after(self, seen: Seen) -> None:
        """Pause after a refusal, with the object as it was seen.

        Raises :class:`ConditionRefused` after some with one content: nobody else was faster. Its
        ETag does not count: some servers have another one in each answer.
        """
        same = self._last is not None and self._last.document == seen.document
        self._count = self._count + 1 if same else 1
        self._last = seen
        if self._count >= _REFUSED_MAX:
            raise ConditionRefused(
                f"{self._path}: the server has refused {self._count} writes of the offset in "
                "succession, on the condition that nobody else wrote it, and nobody did; check "
                "endpoint_url, and that no proxy alters ETags"
            )
        await anyio.sleep(self._backoff.next_s())
